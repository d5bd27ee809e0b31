package flatten

import (
	"reflect"
	"strconv"
)

// Slices moves a dictionary of lists of Go slices into one new slice per batch.
// features[k][b] holds the rows of key k and batch b, rowElems elements each;
// result b has those of all keys in key order. keys are labels for messages,
// nil for none. The caller owns the result; features is only read, and elements
// are copied as by assignment.
//
// It returns a *ShapeError where keys have different numbers of batches, where
// there are batches but no keys to fill them, or where a slice is no whole
// number of rows.
func Slices[T any](keys []string, features [][][]T, rowElems int) ([][]T, error) {
	l, err := sliceLayout(keys, features, rowElems)
	if err != nil {
		return nil, err
	}
	dst := make([][]T, l.Batches)
	for b := range dst {
		dst[b] = make([]T, l.BatchBytes(b))
	}
	return dst, moveSlices(dst, features, l)
}

// SlicesInto is Slices into memory of the caller, dst[b] for batch b. A slice of
// another length than the batch has elements is a *ShapeError with Key -1, and
// nothing is written then. dst must not share elements with features.
func SlicesInto[T any](dst [][]T, keys []string, features [][][]T, rowElems int) error {
	l, err := sliceLayout(keys, features, rowElems)
	if err != nil {
		return err
	}
	if len(dst) != l.Batches {
		return jobError(strconv.Itoa(len(dst))+" outputs", strconv.Itoa(l.Batches)+", one per batch")
	}
	for b := range dst {
		if want := l.BatchBytes(b); int64(len(dst[b])) != want {
			return &ShapeError{Key: -1, Batch: b, Got: elemsText(int64(len(dst[b]))), Want: elemsText(want)}
		}
	}
	return moveSlices(dst, features, l)
}

func elemsText(n int64) string { return strconv.FormatInt(n, 10) + " elements" }

// sliceLayout is the layout of slices, with elements that count as one byte:
// what a plan calls bytes are elements of any type then.
func sliceLayout[T any](keys []string, features [][][]T, rowElems int) (*Layout, error) {
	l := &Layout{Keys: keys, NumKeys: len(features), RowShape: []int64{int64(rowElems)}, DType: DType{CodeUint, 8, 1}}
	if keys != nil && len(keys) != len(features) {
		return nil, jobError(strconv.Itoa(len(features))+" keys of features", strconv.Itoa(len(keys))+", one per label")
	}
	if rowElems < 1 {
		return nil, jobError(elemsText(int64(rowElems))+" a row", "1 or more")
	}
	if len(features) > 0 {
		l.Batches = len(features[0])
	}
	l.Rows = make([]int64, 0, l.NumKeys*l.Batches)
	for k := range features {
		if err := appendRows(l, k, features[k], rowElems); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// appendRows adds the rows of key k to the layout.
func appendRows[T any](l *Layout, k int, batches [][]T, rowElems int) error {
	if len(batches) != l.Batches {
		want := strconv.Itoa(l.Batches) + ", as " + l.Name(0) + " has"
		return &ShapeError{k, -1, l.Name(k), strconv.Itoa(len(batches)) + " batches", want}
	}
	for b, s := range batches {
		if len(s)%rowElems != 0 {
			return &ShapeError{k, b, l.Name(k), elemsText(int64(len(s))), "a multiple of " + strconv.Itoa(rowElems)}
		}
		l.Rows = append(l.Rows, int64(len(s)/rowElems))
	}
	return nil
}

// moveSlices plans and runs the move for a layout from sliceLayout.
func moveSlices[T any](dst [][]T, features [][][]T, l *Layout) error {
	p := new(Plan)
	if err := p.BuildPlain(l); err != nil {
		return err
	}
	total := l.Bytes() // in elements
	workers := usefulWorkers(0, total*int64(reflect.TypeFor[T]().Size()))
	p.share(total, workers, func(s *Segment, first, end int64) {
		from := features[s.Entry/l.Batches][s.Batch]
		copy(dst[s.Batch][s.Dst+first:s.Dst+end], from[first:end])
	})
	return nil
}
