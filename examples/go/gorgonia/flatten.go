package main

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/goflat/goflat/flatten"
)

// Flatten returns one dense tensor per batch, with the rows of all keys: features[k][b] is that
// of key k and batch b. They may be views, such as slices and transposed ones; the results
// are new, row-major tensors.
func Flatten(features [][]*tensor.Dense) ([]*tensor.Dense, error) {
	all, plan, err := planFor(features, flatten.Device{Type: flatten.DeviceCPU})
	if err != nil {
		return nil, err
	}
	src := make([][]byte, len(all))
	for e, d := range all {
		src[e] = raw(d)
	}
	flat := make([]*tensor.Dense, plan.Layout.Batches)
	dst := make([][]byte, len(flat))
	for b := range flat {
		flat[b] = tensor.New(tensor.Of(all[0].Dtype()), tensor.WithShape(ints(plan.Layout.OutShape(b))...))
		dst[b] = raw(flat[b])
	}
	plan.Execute(dst, src, 0)
	return flat, nil
}

// planFor lists the tensors in the order of entries, and plans their move.
func planFor(features [][]*tensor.Dense, device flatten.Device) (all []*tensor.Dense, plan *flatten.Plan, err error) {
	if len(features) == 0 || len(features[0]) == 0 {
		return nil, nil, fmt.Errorf("got no tensors")
	}
	var entries []flatten.Entry
	for _, batches := range features {
		for _, d := range batches {
			e, err := entry(d, device)
			if err != nil {
				return nil, nil, err
			}
			all, entries = append(all, d), append(entries, e)
		}
	}
	layout, err := flatten.NewLayout(make([]string, len(features)), len(features[0]), entries, 0)
	if err != nil {
		return nil, nil, err
	}
	plan, err = flatten.NewPlan(layout, entries, nil)
	return all, plan, err
}

// codes are the kinds of numbers of tensors' types.
var codes = map[tensor.Dtype]uint8{
	tensor.Float32: flatten.CodeFloat, tensor.Float64: flatten.CodeFloat,
	tensor.Int: flatten.CodeInt, tensor.Int8: flatten.CodeInt, tensor.Int16: flatten.CodeInt,
	tensor.Int32: flatten.CodeInt, tensor.Int64: flatten.CodeInt,
	tensor.Uint8: flatten.CodeUint, tensor.Uint16: flatten.CodeUint, tensor.Uint32: flatten.CodeUint,
	tensor.Uint64: flatten.CodeUint, tensor.Bool: flatten.CodeBool,
	tensor.Complex64: flatten.CodeComplex, tensor.Complex128: flatten.CodeComplex,
}

// entry describes a tensor. Its strides count elements, those of an entry bytes.
func entry(d *tensor.Dense, device flatten.Device) (flatten.Entry, error) {
	code, ok := codes[d.Dtype()]
	if !ok {
		return flatten.Entry{}, fmt.Errorf("got elements of %v, want numbers", d.Dtype())
	}
	elem := int(d.Dtype().Size())
	e := flatten.Entry{DType: flatten.DType{Code: code, Bits: uint8(8 * elem), Lanes: 1}, Device: device}
	for i, n := range d.Shape() {
		e.Shape = append(e.Shape, int64(n))
		e.Strides = append(e.Strides, int64(d.Strides()[min(i, len(d.Strides())-1)]*elem))
	}
	return e, nil
}

func ints(shape []int64) []int {
	all := make([]int, len(shape))
	for i, n := range shape {
		all[i] = int(n)
	}
	return all
}
