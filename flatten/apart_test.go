package flatten

import (
	"math/rand/v2"
	"testing"
)

// Apart agrees with CheckOverlap.
func TestApart(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	var a Apart
	met := map[bool]int{}
	for i := range 20_000 {
		l := &Layout{NumKeys: 1 + r.IntN(4), Batches: 1 + r.IntN(4), RowShape: []int64{1 + r.Int64N(3)}, DType: DType{CodeUint, 8, 1}}
		for range l.NumKeys * l.Batches {
			l.Rows = append(l.Rows, r.Int64N(4))
		}
		span := 1 << (5 + r.IntN(10))
		var dst, src []uintptr
		var outs, in []Memory
		for b := range l.Batches {
			dst = append(dst, uintptr(1000+r.IntN(span)))
			outs = append(outs, Memory{View{Shape: l.OutShape(b)}, uint64(dst[b])})
		}
		for e, rows := range l.Rows {
			src = append(src, uintptr(1000+r.IntN(span)))
			in = append(in, Memory{View{Shape: l.shape(rows)}, uint64(src[e])})
		}
		got, want := a.Check(l, dst, src), l.CheckOverlap(outs, in) == nil
		if got != want {
			t.Fatalf("seed %d job %d: got %v, want %v: %v %v %v", seed, i, got, want, l.Rows, dst, src)
		}
		met[got]++
	}
	if met[true] < 1000 || met[false] < 1000 {
		t.Errorf("got %v, want both answers often", met)
	}
}
