package gpu

import (
	"testing"
	"unsafe"

	"gorgonia.org/cu"
)

func TestHandlesAreOnePointer(t *testing.T) {
	for name, size := range map[string]uintptr{
		"cu.CUContext": unsafe.Sizeof(cu.CUContext{}),
		"cu.Stream":    unsafe.Sizeof(cu.Stream{}),
		"cu.Function":  unsafe.Sizeof(cu.Function{}),
	} {
		if want := unsafe.Sizeof(uintptr(0)); size != want {
			t.Errorf("%s: got %d bytes, want %d", name, size, want)
		}
	}
}
