package flatten_test

import (
	"errors"
	"fmt"
	"math"

	"github.com/goflat/goflat/flatten"
)

var float32s = flatten.DType{Code: flatten.CodeFloat, Bits: 32, Lanes: 1}

// tensor is a contiguous float32 entry.
func tensor(shape ...int64) flatten.Entry {
	return flatten.Entry{View: flatten.View{Shape: shape}, DType: float32s, Device: flatten.Device{Type: flatten.DeviceCPU}}
}

func Example() {
	features := [][][]string{
		{{"a", "b"}, {"c", "d", "e"}}, // key "p2": batches 0 and 1
		{{"f"}, {"g"}},                // key "p3"
	}
	flat, err := flatten.Slices([]string{"p2", "p3"}, features, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(flat[0])
	fmt.Println(flat[1])
	// Output:
	// [a b f]
	// [c d e g]
}

func ExampleSlices() {
	// Two keys of one batch; a row is three numbers.
	features := [][][]float64{
		{{1, 2, 3}},
		{{4, 5, 6, 7, 8, 9}},
	}
	flat, err := flatten.Slices(nil, features, 3)
	fmt.Println(flat, err)
	_, err = flatten.Slices([]string{"p2", "p3"}, features, 2)
	fmt.Println(err)
	// Output:
	// [[1 2 3 4 5 6 7 8 9]] <nil>
	// goflat: shape: key "p2", batch 0: got 3 elements, want a multiple of 2
}

func ExampleSlicesInto() {
	buffer := make([]int, 6) // both batches in one piece of memory
	err := flatten.SlicesInto([][]int{buffer[:3], buffer[3:]}, nil, [][][]int{{{1, 2}, {3}}, {{4}, {5, 6}}}, 1)
	fmt.Println(buffer, err)
	// Output: [1 2 4 3 5 6] <nil>
}

func ExampleNewLayout() {
	l, err := flatten.NewLayout([]string{"p2", "p3"}, 1, []flatten.Entry{tensor(2, 256, 7, 7), tensor(5, 256, 7, 7)}, 0)
	fmt.Println(l, err)

	_, err = flatten.NewLayout([]string{"p2", "p3"}, 1, []flatten.Entry{tensor(2, 256, 7, 7), tensor(5, 128, 7, 7)}, 0)
	var shape *flatten.ShapeError
	if errors.As(err, &shape) {
		fmt.Println(shape.Name, "has", shape.Got)
	}
	fmt.Println(err)
	// Output:
	// 2 keys x 1 batches of float32, rows of (256, 7, 7) along dim 0 <nil>
	// p3 has (5, 128, 7, 7)
	// goflat: shape: key "p3", batch 0: got (5, 128, 7, 7), want (*, 256, 7, 7)
}

// layout has two keys and two batches, of 2, 3, 1 and 0 rows of two float32.
func layout() *flatten.Layout {
	l, err := flatten.NewLayout([]string{"p2", "p3"}, 2, []flatten.Entry{tensor(2, 2), tensor(3, 2), tensor(1, 2), tensor(0, 2)}, 0)
	if err != nil {
		panic(err)
	}
	return l
}

func ExampleLayout_Name() {
	fmt.Println(layout().Name(1), (&flatten.Layout{}).Name(1))
	// Output: p3 #1
}

func ExampleLayout_RowBytes() {
	fmt.Println(layout().RowBytes())
	// Output: 8
}

func ExampleLayout_BatchRows() {
	fmt.Println(layout().BatchRows(0), layout().BatchRows(1))
	// Output: 3 3
}

func ExampleLayout_BatchBytes() {
	fmt.Println(layout().BatchBytes(0))
	// Output: 24
}

func ExampleLayout_Bytes() {
	fmt.Println(layout().Bytes())
	// Output: 48
}

func ExampleLayout_Offsets() {
	offsets := layout().Offsets(0)
	for k := range 2 {
		fmt.Printf("key %d has rows %d to %d\n", k, offsets[k], offsets[k+1])
	}
	// Output:
	// key 0 has rows 0 to 2
	// key 1 has rows 2 to 3
}

func ExampleLayout_AppendOffsets() {
	l := layout()
	all := make([]int64, 0, 6)
	for b := range 2 {
		all = l.AppendOffsets(all, b)
	}
	fmt.Println(all)
	// Output: [0 2 3 0 3 3]
}

func ExampleLayout_OutShape() {
	fmt.Println(layout().OutShape(0))
	// Output: [3 2]
}

func ExampleLayout_EntryShape() {
	fmt.Println(layout().EntryShape(1, 1))
	// Output: [0 2]
}

func ExampleNewPlan() {
	entries := []flatten.Entry{tensor(2, 2), tensor(3, 2)}
	entries[1].Strides = []int64{16, 4} // every other row of a (6, 2) tensor
	l, err := flatten.NewLayout(nil, 1, entries, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := flatten.NewPlan(l, entries, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(p)
	// Output:
	// 2 keys x 1 batches of float32, rows of (2,) along dim 0
	// entry 0 -> batch 0: src 0, dst 0, 16 bytes
	// entry 1 -> batch 0: src 0, dst 16, 8 bytes, 3 x (src +16, dst +8)
}

func ExamplePlan_Build() {
	l := layout()
	entries := []flatten.Entry{tensor(2, 2), tensor(3, 2), tensor(1, 2), tensor(0, 2)}
	// Both outputs are columns of one table of rows of 16 bytes.
	out := flatten.View{Shape: []int64{3, 2}, Strides: []int64{16, 4}}
	var p flatten.Plan
	err := p.Build(l, entries, []flatten.View{out, out})
	fmt.Println(p.Segments[0], err)
	// Output: entry 0 -> batch 0: src 0, dst 0, 8 bytes, 2 x (src +8, dst +16) <nil>
}

// A program that plans again and again keeps the layout and the plan: then
// planning allocates nothing.
func ExamplePlan_BuildPlain() {
	var call struct {
		layout flatten.Layout
		plan   flatten.Plan
	}
	for _, rows := range [][]int64{{2, 1}, {0, 3}} {
		call.layout = flatten.Layout{NumKeys: 2, Batches: 1, RowShape: []int64{4}, Rows: rows, DType: float32s}
		if err := call.plan.BuildPlain(&call.layout); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(call.plan.Segments)
	}
	// Output:
	// [entry 0 -> batch 0: src 0, dst 0, 32 bytes entry 1 -> batch 0: src 0, dst 32, 16 bytes]
	// [entry 1 -> batch 0: src 0, dst 0, 48 bytes]
}

// An output that the caller has must be of the right shape.
func ExamplePlan_BuildPlainInto() {
	l := &flatten.Layout{NumKeys: 2, Batches: 1, RowShape: []int64{4}, Rows: []int64{2, 1}, DType: float32s}
	p := new(flatten.Plan)
	fmt.Println(p.BuildPlainInto(l, []flatten.View{{Shape: []int64{3, 4}}}), len(p.Segments))
	fmt.Println(p.BuildPlainInto(l, []flatten.View{{Shape: []int64{2, 4}}}), len(p.Segments))
	// Output:
	// <nil> 2
	// goflat: shape: batch 0: got (2, 4), want (3, 4) 0
}

// plan moves two entries of one-byte elements.
func plan() *flatten.Plan {
	l := &flatten.Layout{NumKeys: 2, Batches: 1, Rows: []int64{3, 2}, DType: flatten.DType{Code: flatten.CodeUint, Bits: 8, Lanes: 1}}
	p := new(flatten.Plan)
	if err := p.BuildPlain(l); err != nil {
		panic(err)
	}
	return p
}

func ExampleApply() {
	out := make([]byte, 5)
	flatten.Apply([][]byte{out}, [][]byte{[]byte("abc"), []byte("de")}, plan())
	fmt.Printf("%s\n", out)
	// Output: abcde
}

func ExamplePlan_Execute() {
	out := make([]byte, 5)
	plan().Execute([][]byte{out}, [][]byte{[]byte("abc"), []byte("de")}, 0)
	fmt.Printf("%s\n", out)
	// Output: abcde
}

func ExampleSegment_Payload() {
	s := flatten.Segment{Bytes: 8, Axes: []flatten.Axis{{N: 3, SrcStep: 16, DstStep: 8}}}
	fmt.Println(s.Payload())
	// Output: 24
}

func ExampleView_Span() {
	reversed := flatten.View{Shape: []int64{5}, Strides: []int64{-4}}
	fmt.Println(reversed.Span(4))
	// Output: -16 4
}

func ExampleDType_ElemBytes() {
	packed := flatten.DType{Code: flatten.CodeFloat4E2M1FN, Bits: 4, Lanes: 2}
	fmt.Println(packed, packed.ElemBytes(), float32s, float32s.ElemBytes())
	// Output: float4_e2m1fn_x2 1 float32 4
}

func ExampleOverlap() {
	// Even and odd columns of one buffer of (2, 8) float32 at address 4096.
	even := flatten.Memory{View: flatten.View{Shape: []int64{2, 4}, Strides: []int64{32, 8}}, Addr: 4096}
	odd := even
	odd.Addr += 4
	left := flatten.Memory{View: flatten.View{Shape: []int64{2, 3}, Strides: []int64{32, 4}}, Addr: 4096}
	fmt.Println(flatten.Overlap(even, odd, 4), flatten.Overlap(left, odd, 4))
	// Output: false true
}

func ExampleLayout_CheckOverlap() {
	l := &flatten.Layout{Keys: []string{"p2", "p3"}, NumKeys: 2, Batches: 1, Rows: []int64{2, 3}, DType: float32s}
	at := func(addr uint64, rows int64) flatten.Memory {
		return flatten.Memory{View: flatten.View{Shape: []int64{rows}}, Addr: addr}
	}
	out := []flatten.Memory{at(4096, 5)}
	fmt.Println(l.CheckOverlap(out, []flatten.Memory{at(8192, 2), at(8200, 3)}))
	fmt.Println(l.CheckOverlap(out, []flatten.Memory{at(8192, 2), at(4100, 3)}))
	// Output:
	// <nil>
	// goflat: overlap: key "p3", batch 0: got bytes shared with output 0, want outputs apart from entries
}

// ram is memory whose first byte has address 4096.
type ram []byte

func (r ram) At(a flatten.Addr, n int64) []byte {
	return r[a.Off-4096:][:n]
}

var bytes = flatten.DType{Code: flatten.CodeUint, Bits: 8, Lanes: 1}

// twoByThree is two keys of three batches, two rows of a byte each, key by key in
// one block of 12 bytes.
func twoByThree() (*flatten.Layout, []flatten.Place, []flatten.Block) {
	l := &flatten.Layout{NumKeys: 2, Batches: 3, Rows: []int64{2, 2, 2, 2, 2, 2}, DType: bytes}
	places := []flatten.Place{{Addr: 4096}, {Addr: 4098}, {Addr: 4100}, {Addr: 4102}, {Addr: 4104}, {Addr: 4106}}
	return l, places, []flatten.Block{{Lo: 4096, Hi: 4108, Bytes: 12}}
}

func ExamplePlanInPlace() {
	l, places, blocks := twoByThree()
	p, err := flatten.PlanInPlace(l, nil, places, blocks, flatten.Options{Cooperative: true})
	fmt.Println(err)
	fmt.Println(p)

	for e := range places { // the same, but somebody else holds all entries
		places[e].Block = -1
	}
	p, err = flatten.PlanInPlace(l, nil, places, nil, flatten.Options{Cooperative: true})
	fmt.Println(p.Strategy, p.Growth, err)
	// Output:
	// <nil>
	// 2 keys x 3 batches of uint8, rows of () along dim 0
	// inplace: growth 0, tables 28, scratch 0, reserved growth 0, 8 rows move
	// output 0 at 0x1000, keeps blocks [0]
	// output 1 at 0x1004, keeps blocks [0]
	// output 2 at 0x1008, keeps blocks [0]
	// permute units of 2 bytes, positions of 2 from 0x1002
	//   0 <- 2 <- 3 <- 1 <- (0)
	//
	// stream 12 <nil>
}

func ExampleInPlace_Run() {
	l, places, blocks := twoByThree()
	p, err := flatten.PlanInPlace(l, nil, places, blocks, flatten.Options{Cooperative: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	memory := ram("0123456789ab")
	for i := range p.Steps {
		p.Run(i, memory, 0)
	}
	fmt.Printf("%s\n", memory)
	// Output: 0167238945ab
}

func ExamplePermutation_TableBytes() {
	p := flatten.Permutation{Unit: 512, Grain: 512, Pos: []uint32{0, 2, 1}, Ends: []int32{3}, Closed: []bool{true}}
	fmt.Println(p.TableBytes())
	// Output: 20
}

func ExamplePermutation_Units() {
	p := flatten.Permutation{Unit: 512, Grain: 512, Pos: []uint32{0, 2, 1, 3, 4}, Ends: []int32{3, 5}, Closed: []bool{true, false}}
	fmt.Println(p.Units())
	// Output: 4
}

func ExampleMove_Payload() {
	m := flatten.Move{Bytes: 8, Axes: []flatten.Axis{{N: 3, SrcStep: 16, DstStep: 8}}}
	fmt.Println(m.Payload())
	// Output: 24
}

func ExampleReservedBound() {
	fmt.Println(flatten.ReservedBound([]int64{100}), flatten.ReservedBound([]int64{3 << 20, 3 << 20}), flatten.ReservedBound([]int64{11<<20 + 1}))
	// Output: 2097152 20971520 20971520
}

func ExampleBounds() {
	l := &flatten.Layout{NumKeys: 2, Batches: 2, RowShape: []int64{4}, Rows: []int64{2, 3, 1, 1}, DType: float32s}
	best, worst, err := flatten.Bounds(l)
	fmt.Println(best.Growth, worst.Growth, err)
	// Output: 0 112 <nil>
}

// float16 has half the bytes; a plan that converts counts elements.
func ExampleApplyCast() {
	l, err := flatten.NewLayout(nil, 1, []flatten.Entry{tensor(2), tensor(1)}, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	plan := new(flatten.Plan)
	if err := plan.BuildPlain(l.InElements()); err != nil {
		fmt.Println(err)
		return
	}
	src := [][]byte{{0, 0, 0x80, 0x3f, 0, 0, 0, 0x40}, {0, 0, 0, 0xc0}} // 1, 2 and -2
	dst := [][]byte{make([]byte, 3*2)}
	flatten.ApplyCast(dst, src, &flatten.Cast{Plan: plan, To: flatten.Float16, From: []flatten.Float{flatten.Float32, flatten.Float32}})
	fmt.Printf("% x\n", dst[0])
	// Output: 00 3c 00 40 00 c0
}

func ExampleConvert() {
	third := uint64(math.Float32bits(1. / 3))
	fmt.Printf("%#x %#x\n", third, flatten.Convert(flatten.BFloat16, flatten.Float32, third, flatten.Rules(0x7fff)))
	// Output: 0x3eaaaaab 0x3eab
}

func ExampleFloatOf() {
	f, ok := flatten.FloatOf(float32s)
	fmt.Println(f, ok)
	_, ok = flatten.FloatOf(flatten.DType{Code: flatten.CodeInt, Bits: 32, Lanes: 1})
	fmt.Println(ok)
	// Output:
	// float32 true
	// false
}

func ExampleFloat_DType() {
	fmt.Println(flatten.BFloat16.DType() == flatten.DType{Code: flatten.CodeBfloat, Bits: 16, Lanes: 1})
	// Output: true
}

func ExampleFloat_Bytes() {
	fmt.Println(flatten.Float32.Bytes(), flatten.BFloat16.Bytes())
	// Output: 4 2
}

func ExampleLayout_InElements() {
	fmt.Println(layout().RowBytes(), layout().InElements().RowBytes())
	// Output: 8 2
}

func ExampleEntry_InElements() {
	e := tensor(3, 2)
	e.Strides = []int64{16, 4}
	fmt.Println(e.InElements().Strides, e.InElements().DType)
	// Output: [4 1] uint8
}

func ExampleView_InElements() {
	fmt.Println(flatten.View{Shape: []int64{3, 2}, Strides: []int64{16, 4}}.InElements(4).Strides)
	// Output: [4 1]
}

// Entry 1 begins within output 0, which is 24 bytes.
func ExampleApart_Check() {
	l := &flatten.Layout{NumKeys: 2, Batches: 1, RowShape: []int64{2}, Rows: []int64{2, 1}, DType: float32s}
	var apart flatten.Apart
	fmt.Println(apart.Check(l, []uintptr{1000}, []uintptr{2000, 1016}))
	fmt.Println(apart.Check(l, []uintptr{1000}, []uintptr{2000, 1024}))
	// Output:
	// false
	// true
}

func ExampleFloat_Short() {
	fmt.Println(flatten.Float32.Short(), flatten.BFloat16.Short())
	// Output: f32 bf16
}
