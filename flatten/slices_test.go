package flatten

import (
	"errors"
	"reflect"
	"testing"
)

func TestSlices(t *testing.T) {
	tests := []struct {
		name     string
		features [][][]int
		rowElems int
		want     [][]int
	}{
		{"two keys, two batches", [][][]int{{{1, 2}, {3}}, {{4}, {5, 6}}}, 1, [][]int{{1, 2, 4}, {3, 5, 6}}},
		{"rows of two", [][][]int{{{1, 2}}, {{3, 4, 5, 6}}}, 2, [][]int{{1, 2, 3, 4, 5, 6}}},
		{"without rows", [][][]int{{{}, nil}, {{1}, {}}}, 1, [][]int{{1}, {}}},
		{"keys without batches", [][][]int{{}, {}}, 1, [][]int{}},
		{"no keys", nil, 1, [][]int{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Slices(nil, tt.features, tt.rowElems)
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v, %v, want %v", got, err, tt.want)
			}
			into := make([][]int, len(tt.want))
			for b := range into {
				into[b] = make([]int, len(tt.want[b]))
			}
			if err := SlicesInto(into, nil, tt.features, tt.rowElems); err != nil || !reflect.DeepEqual(into, tt.want) {
				t.Errorf("into: got %v, %v, want %v", into, err, tt.want)
			}
		})
	}
}

func TestSlicesOfPointersAndStructs(t *testing.T) {
	type row struct {
		name *string
		n    int
	}
	a, b := "a", "b"
	got, err := Slices(nil, [][][]row{{{{&a, 1}}}, {{{&b, 2}, {nil, 3}}}}, 1)
	want := [][]row{{{&a, 1}, {&b, 2}, {nil, 3}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	nothing, err := Slices(nil, [][][]struct{}{{make([]struct{}, 3)}, {make([]struct{}, 2)}}, 1)
	if err != nil || len(nothing[0]) != 5 {
		t.Errorf("empty structs: got %v, %v", nothing, err)
	}
}

func TestLargeSlices(t *testing.T) {
	const n = 1 << 20
	features := [][][]int64{{make([]int64, n), make([]int64, 5)}, {make([]int64, 3), make([]int64, 2*n)}}
	next := int64(0)
	for b := range 2 {
		for k := range 2 {
			for i := range features[k][b] {
				features[k][b][i] = next
				next++
			}
		}
	}
	got, err := Slices(nil, features, 1)
	if err != nil {
		t.Fatal(err)
	}
	next = 0
	for b := range got {
		for i := range got[b] {
			if got[b][i] != next {
				t.Fatalf("batch %d, element %d: got %d, want %d", b, i, got[b][i], next)
			}
			next++
		}
	}
}

func TestSlicesErrors(t *testing.T) {
	keys := []string{"p2", "p3"}
	good := [][][]int{{{1, 2}, {3, 4}}, {{5, 6}, {}}}
	tests := []struct {
		name     string
		keys     []string
		features [][][]int
		rowElems int
		want     string
	}{
		{"batches missing", keys, [][][]int{{{1}, {2}}, {{3}}}, 1, `goflat: shape: key "p3": got 1 batches, want 2, as p2 has`},
		{"part of a row", keys, [][][]int{{{1, 2}, {3, 4}}, {{5, 6}, {7}}}, 2, `goflat: shape: key "p3", batch 1: got 1 elements, want a multiple of 2`},
		{"labels missing", keys[:1], good, 2, `goflat: shape: got 2 keys of features, want 1, one per label`},
		{"rows of nothing", keys, good, 0, `goflat: shape: got 0 elements a row, want 1 or more`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Slices(tt.keys, tt.features, tt.rowElems)
			if !errors.Is(err, ErrShape) || got != nil {
				t.Fatalf("got %v, %v, want %v", got, err, ErrShape)
			}
			if err.Error() != tt.want {
				t.Errorf("got  %s\nwant %s", err, tt.want)
			}
			if err := SlicesInto(nil, tt.keys, tt.features, tt.rowElems); err == nil || err.Error() != tt.want {
				t.Errorf("into: got %v", err)
			}
		})
	}
}

func TestSlicesIntoRefusesOtherLengths(t *testing.T) {
	features := [][][]int{{{1, 2}, {3, 4}}, {{5, 6}, {}}}
	for want, dst := range map[string][][]int{
		"goflat: shape: got 1 outputs, want 2, one per batch":     {make([]int, 4)},
		"goflat: shape: batch 1: got 3 elements, want 2 elements": {make([]int, 4), make([]int, 3)},
		"goflat: shape: batch 0: got 0 elements, want 4 elements": {nil, make([]int, 2)},
	} {
		if err := SlicesInto(dst, nil, features, 2); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		for b := range dst {
			for i, got := range dst[b] {
				if got != 0 {
					t.Errorf("%s: element %d of output %d was written", want, i, b)
				}
			}
		}
	}
}
