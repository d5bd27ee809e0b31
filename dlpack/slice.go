package dlpack

import (
	"fmt"
	"reflect"

	"github.com/goflat/goflat/flatten"
)

// Number is what elements of Go slices may be.
type Number interface {
	~bool | ~int8 | ~int16 | ~int32 | ~int64 | ~int | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uint |
		~float32 | ~float64 | ~complex64 | ~complex128
}

// codes are the kinds of numbers by the kinds of Go.
var codes = map[reflect.Kind]uint8{
	reflect.Bool: flatten.CodeBool,
	reflect.Int8: flatten.CodeInt, reflect.Int16: flatten.CodeInt, reflect.Int32: flatten.CodeInt,
	reflect.Int64: flatten.CodeInt, reflect.Int: flatten.CodeInt,
	reflect.Uint8: flatten.CodeUint, reflect.Uint16: flatten.CodeUint, reflect.Uint32: flatten.CodeUint,
	reflect.Uint64: flatten.CodeUint, reflect.Uint: flatten.CodeUint,
	reflect.Float32: flatten.CodeFloat, reflect.Float64: flatten.CodeFloat,
	reflect.Complex64: flatten.CodeComplex, reflect.Complex128: flatten.CodeComplex,
}

// DTypeOf is the element type of slices of T.
func DTypeOf[T Number]() flatten.DType {
	t := reflect.TypeFor[T]()
	return flatten.DType{Code: codes[t.Kind()], Bits: uint8(8 * t.Size()), Lanes: 1}
}

// Slice describes a Go slice as a contiguous entry of a shape, and returns its memory as
// bytes, which are the slice's own. Both are what [ExportBytes] takes and package flatten
// plans with.
//
// It returns a *flatten.ShapeError where the shape has more or fewer elements.
func Slice[T Number](s []T, shape ...int64) (e flatten.Entry, bytes []byte, err error) {
	cpu := flatten.Device{Type: flatten.DeviceCPU}
	e = flatten.Entry{View: flatten.View{Shape: shape}, DType: DTypeOf[T](), Device: cpu}
	// A layout of one row has the size of the shape, and errors for those that have none.
	l := flatten.Layout{NumKeys: 1, Batches: 1, RowShape: shape, Rows: []int64{1}, DType: e.DType}
	if err := new(flatten.Plan).BuildPlain(&l); err != nil {
		return e, nil, err
	}
	bytes = asBytes(s)
	if int64(len(bytes)) != l.Bytes() {
		got, want := fmt.Sprintf("%d elements", len(s)), fmt.Sprintf("%d for %v", l.Bytes()/e.DType.ElemBytes(), shape)
		return e, nil, &flatten.ShapeError{Key: -1, Batch: -1, Got: got, Want: want}
	}
	return e, bytes, nil
}
