//go:build !386 && !arm && !mips && !mipsle

package flatten

import (
	"syscall"
	"testing"
)

// The file is left out where an int, and so a slice, has 32 bits.

// sparse is n bytes of zeros, of which only touched pages take memory.
func sparse(t *testing.T, n int) []byte {
	t.Helper()
	const flags = syscall.MAP_PRIVATE | syscall.MAP_ANON | syscall.MAP_NORESERVE
	memory, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, flags)
	if err != nil {
		t.Skipf("%d bytes of address space: %v", n, err)
	}
	t.Cleanup(func() {
		if err := syscall.Munmap(memory); err != nil {
			t.Error(err)
		}
	})
	return memory
}

// Rows that lie 2^31+4096 bytes apart on both sides: the moves beyond 2^31 and
// 2^32 are real ones.
func TestMovesBeyond32Bits(t *testing.T) {
	const step, rows = 1<<31 + 4096, 4
	entries := strided([]int64{rows, 2}, []int64{step, 8})
	outs := []View{{[]int64{rows, 2}, []int64{-step, 4}}}
	l, err := NewLayout(nil, 1, entries, 0)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPlan(l, entries, outs)
	if err != nil {
		t.Fatal(err)
	}
	src, dst := sparse(t, step*(rows-1)+12), sparse(t, step*(rows-1)+8)
	for row := range rows {
		for i := range 12 {
			src[row*step+i] = byte(16*row + i + 1)
		}
	}
	for name, run := range map[string]func(){
		"Apply":   func() { Apply([][]byte{dst}, [][]byte{src}, p) },
		"Execute": func() { p.Execute([][]byte{dst}, [][]byte{src}, 0) },
	} {
		run()
		for row := range rows {
			for i := range 8 {
				at := (rows-1-row)*step + i
				if got, want := dst[at], byte(16*row+i/4*8+i%4+1); got != want {
					t.Errorf("%s: row %d, byte %d: got %d, want %d", name, row, i, got, want)
				}
				dst[at] = 0
			}
		}
	}
}
