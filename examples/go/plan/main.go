// Plan shows what goflat will move before it moves anything: which bytes of
// which entry go where, also for entries and outputs with strides.
//
//	go run ./examples/go/plan
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"math"

	"github.com/goflat/goflat/flatten"
)

var (
	keys  = []string{"p2", "p3"}
	float = flatten.DType{Code: flatten.CodeFloat, Bits: 32, Lanes: 1}
	cpu   = flatten.Device{Type: flatten.DeviceCPU}
)

func main() {
	// Entry (k, b), of key k and batch b, has index k*batches+b: p2 of the two
	// batches, then p3. The second is a transposed (2, 3) tensor.
	entries := []flatten.Entry{
		tensor([]int64{2, 2}, nil),
		tensor([]int64{3, 2}, []int64{4, 12}),
		tensor([]int64{1, 2}, nil),
		tensor([]int64{0, 2}, nil),
	}
	layout, err := flatten.NewLayout(keys, 2, entries, 0)
	if err != nil {
		log.Fatal(err)
	}
	describe(layout)

	plan, err := flatten.NewPlan(layout, entries, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(plan)
	move(layout, plan)
	refuse(layout, entries)
}

func tensor(shape, strides []int64) flatten.Entry {
	return flatten.Entry{View: flatten.View{Shape: shape, Strides: strides}, DType: float, Device: cpu}
}

// describe prints what is known without looking at strides.
func describe(l *flatten.Layout) {
	for b := range l.Batches {
		fmt.Printf("output %d: shape %v, %d bytes, keys begin at rows %v\n", b, l.OutShape(b), l.BatchBytes(b), l.Offsets(b))
	}
}

// move runs the plan on numbers and prints the outputs.
func move(l *flatten.Layout, p *flatten.Plan) {
	src := [][]byte{
		numbers(1, 2, 3, 4),
		numbers(5, 7, 9, 6, 8, 10), // as it lies in memory, columns first
		numbers(11, 12),
		nil, // no rows, no memory
	}
	dst := [][]byte{make([]byte, l.BatchBytes(0)), make([]byte, l.BatchBytes(1))}
	p.Execute(dst, src, 0)
	for b := range dst {
		fmt.Printf("output %d: %v\n", b, values(dst[b]))
	}
}

// refuse shows the errors of jobs that cannot be.
func refuse(l *flatten.Layout, entries []flatten.Entry) {
	out := flatten.View{Shape: []int64{3, 2}}
	expanded := flatten.View{Shape: []int64{3, 2}, Strides: []int64{0, 4}}
	_, err := flatten.NewPlan(l, entries, []flatten.View{out, expanded})
	fmt.Println(errors.Is(err, flatten.ErrOverlap), err)

	entries[2].Shape = []int64{1, 5}
	_, err = flatten.NewLayout(keys, 2, entries, 0)
	fmt.Println(errors.Is(err, flatten.ErrShape), err)
}

// numbers are the bytes of float32 values.
func numbers(values ...float32) []byte {
	var bytes []byte
	for _, v := range values {
		bytes = binary.NativeEndian.AppendUint32(bytes, math.Float32bits(v))
	}
	return bytes
}

// values are the float32 values of bytes.
func values(bytes []byte) (values []float32) {
	for i := 0; i < len(bytes); i += 4 {
		values = append(values, math.Float32frombits(binary.NativeEndian.Uint32(bytes[i:])))
	}
	return values
}
