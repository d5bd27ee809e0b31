package dlpack_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"github.com/goflat/goflat/dlpack"
)

// lent makes tensors of shapes (2, 2) and (1, 2), in the place of another library.
func lent() []unsafe.Pointer {
	var all []unsafe.Pointer
	for _, values := range [][]float32{{1, 2, 3, 4}, {5, 6}} {
		e, memory, err := dlpack.Slice(values, int64(len(values)/2), 2)
		if err != nil {
			panic(err)
		}
		managed, err := dlpack.ExportBytes(e, memory, dlpack.Options{})
		if err != nil {
			panic(err)
		}
		all = append(all, managed)
	}
	return all
}

// show takes a float32 tensor and prints it, in the place of another library.
func show(managed unsafe.Pointer) {
	t, err := dlpack.Import(managed)
	if err != nil {
		panic(err)
	}
	defer t.Close()
	memory, err := t.Bytes()
	if err != nil {
		panic(err)
	}
	var values []float32
	for i := 0; i < len(memory); i += 4 {
		values = append(values, math.Float32frombits(binary.NativeEndian.Uint32(memory[i:])))
	}
	fmt.Printf("(%d, %d) %v %v\n", t.Shape[0], t.Shape[1], t.DType, values)
}
