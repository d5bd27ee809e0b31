package dlpack_test

import (
	"errors"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"github.com/goflat/goflat/dlpack"
	"github.com/goflat/goflat/dlpack/internal/dltest"
	"github.com/goflat/goflat/flatten"
)

// view is a float32 view of the CPU.
func view(shape, strides []int64) flatten.Entry {
	return flatten.Entry{
		View:  flatten.View{Shape: shape, Strides: strides},
		DType: dlpack.DTypeOf[float32](), Device: flatten.Device{Type: flatten.DeviceCPU},
	}
}

// What is exported and imported again is the same, whichever struct carries it.
func TestRoundTrip(t *testing.T) {
	memory := make([]byte, 64)
	for i := range memory {
		memory[i] = byte(i)
	}
	for _, unversioned := range []bool{false, true} {
		take := dlpack.Import
		if unversioned {
			take = dlpack.ImportUnversioned
		}
		for name, e := range map[string]flatten.Entry{
			"contiguous": view([]int64{2, 3}, nil),
			"transposed": view([]int64{2, 3}, []int64{4, 8}),
			"reversed":   view([]int64{2, 3}, []int64{-12, 4}),
			"gaps":       view([]int64{2, 3}, []int64{24, 4}),
			"no dims":    view(nil, nil),
			"empty":      view([]int64{0, 3}, nil),
		} {
			released := 0
			managed, err := dlpack.ExportBytes(e, memory, dlpack.Options{Unversioned: unversioned, Release: func() { released++ }})
			if err != nil {
				t.Fatal(name, err)
			}
			tensor, err := take(managed)
			if err != nil {
				t.Fatal(name, err)
			}
			if !slices.Equal(tensor.Shape, e.Shape) || !slices.Equal(tensor.Strides, e.Strides) || tensor.DType != e.DType || tensor.Device != e.Device {
				t.Errorf("%s: got %+v, want %+v", name, tensor.Entry, e)
			}
			got, err := tensor.Bytes()
			if err != nil {
				t.Fatal(name, err)
			}
			lo, hi := e.Span(4)
			if !slices.Equal(got, memory[:hi-lo]) {
				t.Errorf("%s: got bytes %v, want %v", name, got, memory[:hi-lo])
			}
			if len(got) > 0 && &got[0] != &memory[0] {
				t.Errorf("%s: the memory is another", name)
			}
			tensor.Close()
			if released != 1 {
				t.Errorf("%s: released %d times, want 1", name, released)
			}
		}
	}
}

// The deleter may be called on any thread, and Go memory that nobody else has stays until
// then.
func TestGoMemoryLivesUntilTheDeleter(t *testing.T) {
	collected, released := make(chan bool, 1), make(chan bool, 1)
	managed := func() unsafe.Pointer {
		memory := make([]byte, 1<<20)
		memory[77] = 7
		runtime.AddCleanup(&memory[0], func(done chan bool) { done <- true }, collected)
		managed, err := dlpack.ExportBytes(view([]int64{1 << 18}, nil), memory, dlpack.Options{Release: func() { released <- true }})
		if err != nil {
			t.Fatal(err)
		}
		return managed
	}()
	for range 3 {
		runtime.GC()
	}
	select {
	case <-collected:
		t.Fatal("memory was collected while it was lent")
	default:
	}
	if err := dltest.Consume(managed); err != nil {
		t.Fatal(err)
	}
	<-released
	for range 100 {
		runtime.GC()
		select {
		case <-collected:
			return
		default:
			runtime.Gosched()
		}
	}
	t.Error("memory is not collected after it was given back")
}

// DLPack 1.2 wants strides also of contiguous tensors.
func TestExportSaysStrides(t *testing.T) {
	managed, err := dlpack.ExportBytes(view([]int64{2, 0, 3}, nil), nil, dlpack.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := dltest.Strides(managed), []int64{3, 3, 1}; !slices.Equal(got, want) {
		t.Errorf("got strides %v, want %v", got, want)
	}
	if err := dltest.Consume(managed); err != nil {
		t.Fatal(err)
	}
}

func TestExportOfADevice(t *testing.T) {
	e := view([]int64{2, 3}, nil)
	e.Device = flatten.Device{Type: flatten.DeviceCUDA, Index: 1}
	managed, err := dlpack.Export(e, 0x7000_0000, dlpack.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if flags := dltest.Flags(managed); flags != 1 {
		t.Errorf("got flags %d, want 1, read-only", flags)
	}
	tensor, err := dlpack.Import(managed)
	if err != nil {
		t.Fatal(err)
	}
	defer tensor.Close()
	if tensor.Device != e.Device || tensor.Data != 0x7000_0000 || tensor.Low() != 0x7000_0000 || !tensor.ReadOnly {
		t.Errorf("got %+v", tensor)
	}
}

func TestExportRefuses(t *testing.T) {
	memory := make([]byte, 20)
	noBits := view([]int64{1}, nil)
	noBits.DType.Bits = 0
	for name, tt := range map[string]struct {
		entry   flatten.Entry
		options dlpack.Options
		want    error
	}{
		"too little memory":          {view([]int64{2, 3}, nil), dlpack.Options{}, flatten.ErrShape},
		"half elements":              {view([]int64{2, 2}, []int64{6, 4}), dlpack.Options{}, flatten.ErrShape},
		"strides of another shape":   {view([]int64{2}, []int64{4, 4}), dlpack.Options{}, flatten.ErrShape},
		"no bits":                    {noBits, dlpack.Options{}, flatten.ErrDType},
		"what the struct cannot say": {view([]int64{2}, nil), dlpack.Options{ReadOnly: true, Unversioned: true}, dlpack.ErrTensor},
	} {
		tt.options.Release = func() { t.Errorf("%s: released", name) }
		if _, err := dlpack.ExportBytes(tt.entry, memory, tt.options); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", name, err, tt.want)
		}
	}
}

func TestSlice(t *testing.T) {
	type celsius float64
	e, memory, err := dlpack.Slice([]celsius{1, 2, 3, 4, 5, 6}, 2, 3)
	if err != nil || e.DType.String() != "float64" || len(memory) != 48 || !slices.Equal(e.Shape, []int64{2, 3}) {
		t.Errorf("got %+v, %d bytes and %v", e, len(memory), err)
	}
	for _, shape := range [][]int64{{7}, {5}, {-6}, {1 << 40, 1 << 40}} {
		if _, _, err := dlpack.Slice(make([]int32, 6), shape...); !errors.Is(err, flatten.ErrShape) {
			t.Errorf("6 elements as %v: got %v, want %v", shape, err, flatten.ErrShape)
		}
	}
	if _, memory, err := dlpack.Slice([]bool(nil), 0); err != nil || len(memory) != 0 {
		t.Errorf("nothing: got %d bytes and %v", len(memory), err)
	}
}

func TestDTypeOf(t *testing.T) {
	for want, got := range map[string]flatten.DType{
		"bool": dlpack.DTypeOf[bool](), "int8": dlpack.DTypeOf[int8](), "int64": dlpack.DTypeOf[int](),
		"uint16": dlpack.DTypeOf[uint16](), "float32": dlpack.DTypeOf[float32](), "complex128": dlpack.DTypeOf[complex128](),
	} {
		if got.String() != want {
			t.Errorf("got %v, want %s", got, want)
		}
	}
}
