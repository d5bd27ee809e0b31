package dlpack_test

import (
	"fmt"

	"github.com/goflat/goflat/dlpack"
	"github.com/goflat/goflat/flatten"
)

// Two tensors come in from another library, and one goes out, of Go memory.
func Example() {
	managed := lent() // what Python's capsules hold

	var entries []flatten.Entry
	var src [][]byte
	for _, m := range managed {
		t, err := dlpack.Import(m)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer t.Close()
		memory, err := t.Bytes()
		if err != nil {
			fmt.Println(err) // it is on a device: use t.Low and package gpu
			return
		}
		entries, src = append(entries, t.Entry), append(src, memory)
	}
	layout, err := flatten.NewLayout([]string{"p2", "p3"}, 1, entries, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	plan, err := flatten.NewPlan(layout, entries, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	joined := make([]float32, 6)
	e, dst, err := dlpack.Slice(joined, layout.OutShape(0)...)
	if err != nil {
		fmt.Println(err)
		return
	}
	plan.Execute([][]byte{dst}, src, 0)

	out, err := dlpack.ExportBytes(e, dst, dlpack.Options{}) // for another library, which deletes it
	if err != nil {
		fmt.Println(err)
		return
	}
	show(out)
	// Output: (3, 2) float32 [1 2 3 4 5 6]
}
