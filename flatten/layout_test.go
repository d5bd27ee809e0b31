package flatten

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
)

// tensors makes contiguous float32 CPU entries of the given shapes.
func tensors(shapes ...[]int64) []Entry {
	entries := make([]Entry, len(shapes))
	for e, shape := range shapes {
		entries[e] = Entry{View: View{Shape: shape}, DType: float32s, Device: Device{Type: DeviceCPU}}
	}
	return entries
}

func with(entries []Entry, e int, change func(*Entry)) []Entry {
	change(&entries[e])
	return entries
}

func TestNewLayout(t *testing.T) {
	tests := []struct {
		name     string
		batches  int
		entries  []Entry
		dim      int
		dimWant  int
		rowShape []int64
		rows     []int64
		legacy   []bool
		outs     [][]int64
	}{
		{"one entry", 1, tensors([]int64{3}), 0, 0, []int64{}, []int64{3}, nil, [][]int64{{3}}},
		{
			"two keys, two batches", 2, tensors([]int64{2, 4}, []int64{3, 4}, []int64{1, 4}, []int64{0, 4}), 0,
			0,
			[]int64{4},
			[]int64{2, 3, 1, 0},
			nil,
			[][]int64{{3, 4}, {3, 4}},
		},
		{"last dim", 1, tensors([]int64{5, 2}, []int64{5, 3}), -1, 1, []int64{5}, []int64{2, 3}, nil, [][]int64{{5, 5}}},
		{"first dim from the end", 1, tensors([]int64{5, 2}, []int64{6, 2}), -2, 0, []int64{2}, []int64{5, 6}, nil, [][]int64{{11, 2}}},
		{"all without rows", 1, tensors([]int64{0, 4}, []int64{0, 4}), 0, 0, []int64{4}, []int64{0, 0}, nil, [][]int64{{0, 4}}},
		{"rows without elements", 1, tensors([]int64{2, 0}, []int64{3, 0}), 0, 0, []int64{0}, []int64{2, 3}, nil, [][]int64{{5, 0}}},
		{
			"legacy beside others", 1, tensors([]int64{0}, []int64{2, 4}), -1,
			1,
			[]int64{2},
			[]int64{0, 4},
			[]bool{true, false},
			[][]int64{{2, 4}},
		},
		{
			"a batch of legacy entries", 2, tensors([]int64{0}, []int64{2, 4}, []int64{0}, []int64{1, 4}), 0,
			0,
			[]int64{4},
			[]int64{0, 2, 0, 1},
			[]bool{true, false, true, false},
			[][]int64{{0}, {3, 4}},
		},
		{"legacy entries only, any dim", 1, tensors([]int64{0}, []int64{0}), 5, 0, []int64{}, []int64{0, 0}, nil, [][]int64{{0}}},
		{"1-dim entries are never legacy", 1, tensors([]int64{0}, []int64{2}), 0, 0, []int64{}, []int64{0, 2}, nil, [][]int64{{2}}},
		{"extents whose product is 0", 1, tensors([]int64{1, math.MaxInt64, math.MaxInt64, 0}), 0, 0, []int64{math.MaxInt64, math.MaxInt64, 0}, []int64{1}, nil, [][]int64{{1, math.MaxInt64, math.MaxInt64, 0}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, err := NewLayout(nil, tt.batches, tt.entries, tt.dim)
			if err != nil {
				t.Fatal(err)
			}
			if l.Dim != tt.dimWant || !reflect.DeepEqual(l.RowShape, tt.rowShape) || !reflect.DeepEqual(l.Rows, tt.rows) || !reflect.DeepEqual(l.Legacy, tt.legacy) {
				t.Errorf("got dim %d, row shape %v, rows %v, legacy %v", l.Dim, l.RowShape, l.Rows, l.Legacy)
			}
			for b, want := range tt.outs {
				if got := l.OutShape(b); !reflect.DeepEqual(got, want) {
					t.Errorf("output %d: got %v, want %v", b, got, want)
				}
			}
			for e := range tt.entries {
				if got, want := l.EntryShape(e/tt.batches, e%tt.batches), tt.entries[e].Shape; !reflect.DeepEqual(got, want) {
					t.Errorf("entry %d: got %v, want %v", e, got, want)
				}
			}
		})
	}
}

func TestEmptyJobs(t *testing.T) {
	for name, keys := range map[string][]string{"no keys": nil, "keys without batches": {"p2", "p3"}} {
		t.Run(name, func(t *testing.T) {
			l, err := NewLayout(keys, 0, nil, -1)
			if err != nil {
				t.Fatal(err)
			}
			if l.NumKeys != len(keys) || l.Batches != 0 || l.Bytes() != 0 {
				t.Errorf("got %+v", l)
			}
			p, err := NewPlan(l, nil, nil)
			if err != nil || len(p.Segments) != 0 {
				t.Errorf("got %v, %v, want an empty plan", p, err)
			}
			p.Execute(nil, nil, 0)
			Apply(nil, nil, p)
		})
	}
}

func TestNewLayoutErrors(t *testing.T) {
	keys := []string{"p2", "p3"}
	shapes := func() []Entry { return tensors([]int64{2, 4}, []int64{3, 4}, []int64{1, 4}, []int64{0, 4}) }
	huge := int64(1) << 62
	tests := []struct {
		name    string
		keys    []string
		batches int
		entries []Entry
		dim     int
		is      error
		text    string
	}{
		{"row shape", keys, 2, with(shapes(), 3, func(e *Entry) { e.Shape = []int64{9, 5} }), 0, ErrShape, `goflat: shape: key "p3", batch 1: got (9, 5), want (*, 4)`},
		{"dims", keys, 2, with(shapes(), 1, func(e *Entry) { e.Shape = []int64{9, 4, 1} }), 0, ErrShape, `goflat: shape: key "p2", batch 1: got (9, 4, 1), want (*, 4)`},
		{"no name", nil, 2, with(shapes(), 2, func(e *Entry) { e.Shape = []int64{4} }), 0, ErrShape, `goflat: shape: key "#1", batch 0: got (4,), want (*, 4)`},
		{"0-dim first", keys, 2, with(shapes(), 0, func(e *Entry) { e.Shape = nil }), 0, ErrShape, `goflat: shape: key "p2", batch 0: got a 0-dim tensor, want at least 1 dim`},
		{"0-dim later", keys, 2, with(shapes(), 1, func(e *Entry) { e.Shape = nil }), 0, ErrShape, `goflat: shape: key "p2", batch 1: got (), want (*, 4)`},
		{"empty of other shape is not skipped", keys, 2, with(shapes(), 1, func(e *Entry) { e.Shape = []int64{0, 5} }), 0, ErrShape, `goflat: shape: key "p2", batch 1: got (0, 5), want (*, 4)`},
		{"dim too large", keys, 2, shapes(), 2, ErrShape, `goflat: shape: key "p2", batch 0: got dim 2 for shape (2, 4), want -2 <= dim < 2`},
		{"dim too small", keys, 2, shapes(), -3, ErrShape, `goflat: shape: key "p2", batch 0: got dim -3 for shape (2, 4), want -2 <= dim < 2`},
		{"dtype", keys, 2, with(shapes(), 2, func(e *Entry) { e.DType = DType{CodeBfloat, 16, 1} }), 0, ErrDType, `goflat: dtype: key "p3", batch 0: got bfloat16, want float32`},
		{"dtype without bits", keys, 2, with(shapes(), 0, func(e *Entry) { e.DType = DType{} }), 0, ErrDType, `goflat: dtype: got int0_x0, want at least one bit an element`},
		{"device", keys, 2, with(shapes(), 3, func(e *Entry) { e.Device = Device{DeviceCUDA, 1} }), 0, ErrDevice, `goflat: device: key "p3", batch 1: got cuda:1, want cpu`},
		{"strides of other dims", keys, 2, with(shapes(), 0, func(e *Entry) { e.Strides = []int64{4} }), 0, ErrShape, `goflat: shape: key "p2", batch 0: got strides (4,) for shape (2, 4), want one per dim, within 63 bits`},
		{"strides of other dims, empty", keys, 2, with(shapes(), 3, func(e *Entry) { e.Strides = []int64{4} }), 0, ErrShape, `goflat: shape: key "p3", batch 1: got strides (4,) for shape (0, 4), want one per dim, within 63 bits`},
		{"strides beyond 63 bits", keys, 2, with(shapes(), 0, func(e *Entry) { e.Strides = []int64{huge, huge} }), 0, ErrShape, `goflat: shape: key "p2", batch 0: got strides (4611686018427387904, 4611686018427387904) for shape (2, 4), want one per dim, within 63 bits`},
		{"negative extent", nil, 1, tensors([]int64{2, -4}), 0, ErrShape, `goflat: shape: got row shape (-4,), want no negative extent`},
		{"negative rows", nil, 1, tensors([]int64{-2, 4}), 0, ErrShape, `goflat: shape: key "#0", batch 0: got -2 rows, want 0 or more, and less than 2^63 bytes in all`},
		{"row too large", nil, 1, tensors([]int64{0, huge}), 0, ErrShape, `goflat: shape: got row shape (4611686018427387904,), want less than 2^63 bytes a row`},
		{"too large in all", nil, 1, tensors([]int64{huge / 4}, []int64{huge / 4}), 0, ErrShape, `goflat: shape: key "#1", batch 0: got 1152921504606846976 rows, want 0 or more, and less than 2^63 bytes in all`},
		{"too many entries", keys, 2, tensors(make([][]int64, 5)...), 0, ErrShape, `goflat: shape: got 5 entries, want 2 keys of 2 batches each`},
		{"entries left over", nil, 2, tensors(make([][]int64, 5)...), 0, ErrShape, `goflat: shape: got 5 entries, want 2 keys of 2 batches each`},
		{"batches without keys", []string{}, 2, nil, 0, ErrShape, `goflat: shape: batch 0: got no keys, want at least one key`},
		{"negative batches", keys, -2, nil, 0, ErrShape, `goflat: shape: got 0 entries, want 2 keys of -2 batches each`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, err := NewLayout(tt.keys, tt.batches, tt.entries, tt.dim)
			if !errors.Is(err, tt.is) || l != nil {
				t.Fatalf("got %v, %v, want %v", l, err, tt.is)
			}
			if got := err.Error(); got != tt.text {
				t.Errorf("got  %s\nwant %s", got, tt.text)
			}
		})
	}
}

func TestLiteralLayoutErrors(t *testing.T) {
	tests := []struct {
		name   string
		layout Layout
		want   string
	}{
		{"rows missing", Layout{NumKeys: 2, Batches: 1, Rows: []int64{1}, DType: float32s}, "got 1 entries"},
		{"keys missing", Layout{Batches: 2, DType: float32s}, "got no keys"},
		{"negative rows", Layout{NumKeys: 1, Batches: 1, Rows: []int64{-1}, DType: float32s}, "got -1 rows"},
		{"no dtype", Layout{NumKeys: 1, Batches: 1, Rows: []int64{1}}, "got int0_x0"},
		{"dim outside", Layout{NumKeys: 1, Batches: 1, Rows: []int64{1}, DType: float32s, Dim: 1}, "got dim 1"},
		{"negative dim", Layout{NumKeys: 1, Batches: 1, Rows: []int64{1}, DType: float32s, Dim: -1}, "got dim -1"},
		{"legacy marks missing", Layout{NumKeys: 1, Batches: 2, Rows: []int64{1, 1}, DType: float32s, Legacy: []bool{true}}, "got 1 legacy marks"},
		{"devices missing", Layout{NumKeys: 1, Batches: 2, Rows: []int64{1, 1}, DType: float32s, Devices: make([]Device, 1)}, "got 1 devices"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := new(Plan)
			err := p.BuildPlain(&tt.layout)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if len(p.Segments) != 0 {
				t.Errorf("got %d segments after an error", len(p.Segments))
			}
		})
	}
}

func TestOffsets(t *testing.T) {
	l := &Layout{NumKeys: 3, Batches: 2, Rows: []int64{2, 5, 0, 1, 4, 0}, RowShape: []int64{3}, DType: float32s}
	for b, want := range [][]int64{{0, 2, 2, 6}, {0, 5, 6, 6}} {
		if got := l.Offsets(b); !reflect.DeepEqual(got, want) {
			t.Errorf("batch %d: got %v, want %v", b, got, want)
		}
	}
	if got, want := [...]int64{l.RowBytes(), l.BatchRows(1), l.BatchBytes(1), l.Bytes()}, [...]int64{12, 6, 72, 144}; got != want {
		t.Errorf("sizes: got %v, want %v", got, want)
	}
}
