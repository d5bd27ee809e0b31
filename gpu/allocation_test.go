package gpu_test

import (
	"errors"
	"testing"

	"github.com/goflat/goflat/gpu"
)

func TestAllocation(t *testing.T) {
	b := onDevice(t, 0)
	const bytes = 3 << 20
	first := uint64(b.alloc(make([]byte, bytes)))
	for _, at := range []uint64{first, first + 1, first + bytes - 1} {
		lo, hi, vmm, err := gpu.Allocation(0, at)
		if lo != first || hi < first+bytes || vmm || err != nil {
			t.Errorf("address %d of the allocation: got [%#x, %#x), %v, %v, want it to be at %#x, not mapped", at-first, lo, hi, vmm, err, first)
		}
	}
	var failed *gpu.Error
	if _, _, _, err := gpu.Allocation(0, 4096); !errors.As(err, &failed) {
		t.Errorf("an address of nothing: got %v, want an Error", err)
	}
	if _, _, _, err := gpu.Allocation(99, first); !errors.Is(err, gpu.ErrNoDevice) {
		t.Errorf("got %v, want ErrNoDevice", err)
	}
}
