// Gorgonia joins dense tensors of gorgonia.org/tensor, on the CPU and on a CUDA device. It is
// a module of its own, so that goflat does not come to need gorgonia.org/tensor.
//
//	cd examples/go/gorgonia && go run .
package main

import (
	"fmt"
	"log"

	"gorgonia.org/tensor"

	"github.com/goflat/goflat/gpu"
)

func main() {
	features := [][]*tensor.Dense{ // features[key][batch], rows of two numbers
		{dense(2, 1, 2, 3, 4), dense(1, 5, 6)},
		{dense(1, 7, 8), dense(2, 9, 10, 11, 12)},
	}
	flat, err := Flatten(features)
	if err != nil {
		log.Fatal(err)
	}
	for b, d := range flat {
		fmt.Printf("batch %d on the CPU: shape %v, %v\n", b, d.Shape(), d.Data())
	}
	if err := gpu.Available(); err != nil {
		fmt.Println("nothing on a GPU:", err)
		return
	}
	if err := onDevice(features); err != nil {
		log.Fatal(err)
	}
}

// onDevice does the same on device 0.
func onDevice(features [][]*tensor.Dense) error {
	device, err := NewDevice(0)
	if err != nil {
		return err
	}
	defer device.Close()
	there := make([][]*tensor.Dense, len(features))
	for k := range features {
		for _, d := range features[k] {
			moved, err := device.Upload(d)
			if err != nil {
				return err
			}
			there[k] = append(there[k], moved)
		}
	}
	flat, err := device.Flatten(there)
	if err != nil {
		return err
	}
	for b, d := range flat {
		back, err := device.Download(d)
		if err != nil {
			return err
		}
		fmt.Printf("batch %d on a GPU: shape %v, %v\n", b, d.Shape(), back.Data())
	}
	return nil
}

// dense is a tensor of float32 rows of two.
func dense(rows int, values ...float32) *tensor.Dense {
	return tensor.New(tensor.WithShape(rows, 2), tensor.WithBacking(values))
}
