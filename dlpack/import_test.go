package dlpack_test

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"
	"unsafe"

	"github.com/goflat/goflat/dlpack"
	"github.com/goflat/goflat/dlpack/internal/dltest"
	"github.com/goflat/goflat/flatten"
)

// spec is a float32 tensor of shape (2, 3) on the CPU.
func spec() dltest.Spec {
	return dltest.Spec{
		Data: dltest.Memory(64), Type: flatten.DeviceCPU, Code: flatten.CodeFloat, Bits: 32, Lanes: 1,
		Ndim: 2, Shape: []int64{2, 3}, Strides: []int64{3, 1}, Major: 1,
	}
}

func TestImport(t *testing.T) {
	tests := []struct {
		name      string
		change    func(*dltest.Spec)
		strides   []int64
		low, size int64 // of the memory that it touches, relative to Data
	}{
		{"contiguous", func(*dltest.Spec) {}, nil, 0, 24},
		{"without strides", func(s *dltest.Spec) { s.Strides = nil }, nil, 0, 24},
		{"strides of one do not matter", func(s *dltest.Spec) { s.Shape[0], s.Strides[0] = 1, -77 }, nil, 0, 12},
		{"transposed", func(s *dltest.Spec) { s.Strides = []int64{1, 2} }, []int64{4, 8}, 0, 24},
		{"reversed", func(s *dltest.Spec) { s.Strides, s.Offset = []int64{-3, 1}, 12 }, []int64{-12, 4}, 0, 24},
		{"expanded", func(s *dltest.Spec) { s.Strides = []int64{0, 1} }, []int64{0, 4}, 0, 12},
		{"offset", func(s *dltest.Spec) { s.Offset = 8 }, nil, 8, 24},
		{"two lanes", func(s *dltest.Spec) { s.Lanes = 2 }, nil, 0, 48},
		{"empty", func(s *dltest.Spec) { s.Shape, s.Data = []int64{0, 3}, nil }, nil, 0, 0},
		{"no dims", func(s *dltest.Spec) { s.Ndim, s.Shape, s.Strides = 0, nil, nil }, nil, 0, 4},
		{"padded", func(s *dltest.Spec) { s.Code, s.Bits, s.Flags = flatten.CodeFloat4E2M1FN, 4, 4 }, nil, 0, 6},
		{"a later minor version", func(s *dltest.Spec) { s.Major = 1 }, nil, 0, 24},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := spec()
			tt.change(&s)
			got, err := dlpack.Import(dltest.Versioned(s))
			if err != nil {
				t.Fatal(err)
			}
			defer got.Close()
			if !slices.Equal(got.Strides, tt.strides) || (got.Strides == nil) != (tt.strides == nil) {
				t.Errorf("got strides %v, want %v", got.Strides, tt.strides)
			}
			if !slices.Equal(got.Shape, s.Shape[:s.Ndim]) {
				t.Errorf("got shape %v, want %v", got.Shape, s.Shape)
			}
			memory, err := got.Bytes()
			if err != nil || int64(len(memory)) != tt.size {
				t.Errorf("got %d bytes and %v, want %d", len(memory), err, tt.size)
			}
			if low := int64(got.Low()) - int64(uintptr(s.Data)); low != tt.low {
				t.Errorf("got memory from byte %d on, want %d", low, tt.low)
			}
		})
	}
}

func TestImportRefuses(t *testing.T) {
	tests := []struct {
		name   string
		change func(*dltest.Spec)
		want   error
	}{
		{"another generation", func(s *dltest.Spec) { s.Major = 2 }, dlpack.ErrVersion},
		{"packed elements", func(s *dltest.Spec) { s.Bits = 4 }, dlpack.ErrTensor},
		{"no bits", func(s *dltest.Spec) { s.Bits = 0 }, dlpack.ErrTensor},
		{"negative dims", func(s *dltest.Spec) { s.Ndim = -1 }, dlpack.ErrTensor},
		{"no shape", func(s *dltest.Spec) { s.Shape = nil }, dlpack.ErrTensor},
		{"negative extent", func(s *dltest.Spec) { s.Shape[1] = -3 }, dlpack.ErrTensor},
		{"too many elements", func(s *dltest.Spec) { s.Shape, s.Strides = []int64{1 << 40, 1 << 40}, nil }, dlpack.ErrTensor},
		{"a stride that wraps", func(s *dltest.Spec) { s.Strides[0] = math.MaxInt64 / 2 }, dlpack.ErrTensor},
		{"far strides together", func(s *dltest.Spec) { s.Strides = []int64{1 << 57, 1 << 56} }, dlpack.ErrTensor},
		{"the lowest stride", func(s *dltest.Spec) { s.Strides[0] = math.MinInt64 }, dlpack.ErrTensor},
		{"no memory", func(s *dltest.Spec) { s.Data = nil }, dlpack.ErrTensor},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := spec()
			tt.change(&s)
			managed, before := dltest.Versioned(s), dltest.Deleted()
			if _, err := dlpack.Import(managed); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if dltest.Deleted() != before {
				t.Error("the struct is gone, although it was not taken")
			}
		})
	}
	for name, take := range map[string]func(unsafe.Pointer) (*dlpack.Tensor, error){
		"Import": dlpack.Import, "ImportUnversioned": dlpack.ImportUnversioned,
	} {
		if _, err := take(nil); !errors.Is(err, dlpack.ErrTensor) {
			t.Errorf("%s of none: got %v, want %v", name, err, dlpack.ErrTensor)
		}
	}
	s := spec()
	s.Bits = 4
	if _, err := dlpack.ImportUnversioned(dltest.Unversioned(s)); !errors.Is(err, dlpack.ErrTensor) {
		t.Errorf("packed elements, unversioned: got %v, want %v", err, dlpack.ErrTensor)
	}
}

func TestCloseDeletesOnce(t *testing.T) {
	for name, take := range map[string]func() (*dlpack.Tensor, error){
		"versioned":   func() (*dlpack.Tensor, error) { return dlpack.Import(dltest.Versioned(spec())) },
		"unversioned": func() (*dlpack.Tensor, error) { return dlpack.ImportUnversioned(dltest.Unversioned(spec())) },
	} {
		tensor, err := take()
		if err != nil {
			t.Fatal(err)
		}
		before := dltest.Deleted()
		tensor.Close()
		tensor.Close()
		if n := dltest.Deleted() - before; n != 1 {
			t.Errorf("%s: the deleter was called %d times, want 1", name, n)
		}
		if _, err := tensor.Bytes(); !errors.Is(err, dlpack.ErrClosed) {
			t.Errorf("%s: got %v, want %v", name, err, dlpack.ErrClosed)
		}
	}
	tensor, err := dlpack.Import(dltest.WithoutDeleter(dltest.Versioned(spec())))
	if err != nil {
		t.Fatal(err)
	}
	tensor.Close()
}

func TestReadOnly(t *testing.T) {
	s := spec()
	s.Flags = 1
	tensor, err := dlpack.Import(dltest.Versioned(s))
	if err != nil || !tensor.ReadOnly {
		t.Fatalf("got %+v and %v, want it to be read-only", tensor, err)
	}
	tensor.Close()
}

func TestBytesOfADevice(t *testing.T) {
	for device, want := range map[int32]error{flatten.DeviceCUDA: flatten.ErrDevice, 3: nil, 99: flatten.ErrDevice} {
		s := spec()
		s.Type = device
		tensor, err := dlpack.Import(dltest.Versioned(s))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tensor.Bytes(); !errors.Is(err, want) {
			t.Errorf("device type %d: got %v, want %v", device, err, want)
		}
		tensor.Close()
	}
}

// Imported tensors are entries as package flatten takes them.
func TestFlattenImported(t *testing.T) {
	first, second := spec(), spec()
	copy(unsafe.Slice((*byte)(first.Data), 24), "aaaabbbbccccddddeeeeffff")
	copy(unsafe.Slice((*byte)(second.Data), 24), "uuuuvvvvwwwwxxxxyyyyzzzz")
	second.Strides, second.Offset = []int64{-3, 1}, 12 // upside down
	var entries []flatten.Entry
	var src [][]byte
	for _, s := range []dltest.Spec{first, second} {
		tensor, err := dlpack.Import(dltest.Versioned(s))
		if err != nil {
			t.Fatal(err)
		}
		defer tensor.Close()
		memory, err := tensor.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		entries, src = append(entries, tensor.Entry), append(src, memory)
	}
	layout, err := flatten.NewLayout(nil, 1, entries, 0)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := flatten.NewPlan(layout, entries, nil)
	if err != nil {
		t.Fatal(err)
	}
	dst := [][]byte{make([]byte, 48)}
	plan.Execute(dst, src, 0)
	if want := []byte("aaaabbbbccccddddeeeeffffxxxxyyyyzzzzuuuuvvvvwwww"); !bytes.Equal(dst[0], want) {
		t.Errorf("got %s, want %s", dst[0], want)
	}
}
