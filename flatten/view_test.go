package flatten

import (
	"math"
	"testing"
)

func TestSpan(t *testing.T) {
	tests := []struct {
		name   string
		view   View
		lo, hi int64
	}{
		{"contiguous", View{Shape: []int64{2, 3}}, 0, 24},
		{"0-dim", View{}, 0, 4},
		{"no elements", View{Shape: []int64{2, 0}, Strides: []int64{64, -8}}, 0, 0},
		{"gaps", View{Shape: []int64{2, 3}, Strides: []int64{100, 8}}, 0, 120},
		{"transposed", View{Shape: []int64{2, 3}, Strides: []int64{4, 8}}, 0, 24},
		{"expanded", View{Shape: []int64{5, 3}, Strides: []int64{0, 4}}, 0, 12},
		{"reversed", View{Shape: []int64{2, 3}, Strides: []int64{12, -4}}, -8, 16},
		{"both reversed", View{Shape: []int64{2, 3}, Strides: []int64{-12, -4}}, -20, 4},
		{"odd stride of a single row", View{Shape: []int64{1, 3}, Strides: []int64{math.MinInt64, 4}}, 0, 12},
		{"2^31 elements", View{Shape: []int64{1 << 31}}, 0, 1 << 33},
		{"the largest", View{Shape: []int64{1<<61 - 1}}, 0, math.MaxInt64 - 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if lo, hi := tt.view.Span(4); lo != tt.lo || hi != tt.hi {
				t.Errorf("got [%d, %d), want [%d, %d)", lo, hi, tt.lo, tt.hi)
			}
			if _, _, ok := tt.view.span(4); !ok {
				t.Error("does not fit")
			}
		})
	}
}

func TestSpanBeyond63Bits(t *testing.T) {
	for name, view := range map[string]View{
		"contiguous":         {Shape: []int64{1 << 61}},
		"product wraps to 0": {Shape: []int64{1 << 32, 1 << 32}},
		"up":                 {Shape: []int64{2, 2}, Strides: []int64{math.MaxInt64 / 2, math.MaxInt64 / 2}},
		"down":               {Shape: []int64{2, 2, 2}, Strides: []int64{math.MinInt64 + 1, math.MinInt64 + 1, 4}},
		"up and down":        {Shape: []int64{2, 2}, Strides: []int64{math.MaxInt64 - 4, math.MinInt64 + 1}},
		"one step":           {Shape: []int64{2}, Strides: []int64{math.MinInt64}},
	} {
		t.Run(name, func(t *testing.T) {
			if lo, hi, ok := view.span(4); ok {
				t.Errorf("got [%d, %d), want a refusal", lo, hi)
			}
		})
	}
}
