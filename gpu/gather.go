package gpu

// #include "launch.h"
import "C"

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu/internal/launch"
)

// Gather moves the bytes of a plan's batches that live on one CUDA device, as
// [flatten.Apply] would, in one launch if the job is ordinary and in a few if it is
// large or mixed. It returns once the launches are enqueued.
//
// dst has one address a batch and src one an entry: those of the lowest bytes that the
// views touch, from which the plan's offsets count. Addresses that belong to batches
// elsewhere are not looked at; a layout without devices is all on this one. stream is
// the caller's CUstream, of the device's primary context (a cudaStream_t is the same);
// 0 and 1 are the legacy default stream, 2 is the thread's own.
//
// The caller keeps the memory alive until the stream has passed this point, and makes
// sure that nothing else writes the entries or touches the outputs until then.
//
// Gather does not allocate, neither here (once warm) nor on the device, does not wait
// for the device, and may be captured into a CUDA graph, which then holds the
// addresses. It leaves the thread's current context as it was. Errors are an
// [UnavailableError] or a launch's [Error]; after the latter the outputs are undefined.
func Gather(device int, stream uintptr, plan *flatten.Plan, dst, src []uintptr) error {
	if len(plan.Segments) == 0 {
		return nil
	}
	if err := checkAddresses("gather", plan, len(dst), len(src)); err != nil {
		return err
	}
	on, err := use(device)
	if err != nil {
		return err
	}
	return gatherOn(on, device, stream, plan, dst, src)
}

// checkAddresses refuses lists of addresses that are not one a batch and one an entry.
func checkAddresses(operation string, plan *flatten.Plan, dst, src int) error {
	if l := plan.Layout; dst != l.Batches || src != len(l.Rows) {
		return fmt.Errorf("%s: got %d output and %d entry addresses, want %d and %d", operation, dst, src, l.Batches, len(l.Rows))
	}
	return nil
}

func gatherOn(on *loaded, device int, stream uintptr, plan *flatten.Plan, dst, src []uintptr) error {
	g := takeGather(on, stream)
	defer g.putBack()
	g.job = launch.Job{
		Plan: plan, Dst: dst, Src: src,
		Device:          flatten.Device{Type: flatten.DeviceCUDA, Index: int32(device)},
		Multiprocessors: on.multiprocessors,
	}
	return g.run()
}

// GatherPlain is [Gather] for contiguous entries that are joined along dimension 0 into contiguous outputs, all on one
// device. It needs no plan, and takes half the time on the host that making and running one does.
//
// rows has the rows of each entry, key-major, and src its address; dst has the address of each output. A row is rowBytes
// bytes long.
func GatherPlain(device int, stream uintptr, rows []int64, rowBytes int64, dst, src []uintptr) error {
	if len(rows) == 0 {
		return nil
	}
	if len(src) != len(rows) || len(dst) == 0 || len(rows)%len(dst) != 0 || rowBytes < 0 {
		return fmt.Errorf("gather: got %d entries of rows of %d bytes, %d entry and %d output addresses", len(rows), rowBytes, len(src), len(dst))
	}
	on, err := use(device)
	if err != nil {
		return err
	}
	g := takeGather(on, stream)
	defer g.putBack()
	g.plain = launch.Plain{Rows: rows, RowBytes: rowBytes, Dst: dst, Src: src, Multiprocessors: on.multiprocessors}
	return g.run()
}

// Moves moves bytes between addresses on a CUDA device, as a loop over moves would if it
// read everything before it wrote anything: no destination may be a source. All
// addresses are absolute. Everything else is as for [Gather].
func Moves(device int, stream uintptr, moves []flatten.Move) error {
	if len(moves) == 0 {
		return nil
	}
	if err := checkMoves(moves); err != nil {
		return err
	}
	on, err := use(device)
	if err != nil {
		return err
	}
	return movesOn(on, stream, moves)
}

func checkMoves(moves []flatten.Move) error {
	for i := range moves {
		if m := &moves[i]; m.Dst.Base != flatten.Absolute || m.Src.Base != flatten.Absolute {
			return fmt.Errorf("moves: got bases %d and %d in move %d, want absolute addresses", m.Dst.Base, m.Src.Base, i)
		}
	}
	return nil
}

func movesOn(on *loaded, stream uintptr, moves []flatten.Move) error {
	g := takeGather(on, stream)
	defer g.putBack()
	g.moves = moves
	return g.run()
}

// A gather is the memory of one call of Gather, GatherPlain or Moves, used again by later ones.
type gather struct {
	tables launch.Gather
	job    launch.Job
	plain  launch.Plain   // instead of job, unless without entries
	moves  []flatten.Move // instead of job, unless nil
	on     *loaded
	stream uintptr
	launch func(*launch.Launch) error // g.enqueue, made once
	next   *gather                    // in the list of idle ones
}

// run enqueues the job's launches with the device's context current.
func (g *gather) run() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s, err := enter(g.on.context)
	if err != nil {
		return err
	}
	if g.moves != nil {
		return s.leave(g.tables.RunMoves(g.moves, g.on.multiprocessors, g.launch))
	}
	if g.plain.Rows != nil {
		return s.leave(g.tables.RunPlain(&g.plain, g.launch))
	}
	return s.leave(g.tables.Run(&g.job, g.launch))
}

func (g *gather) enqueue(l *launch.Launch) error { return g.on.enqueue(g.stream, l) }

// enqueue launches on a stream; the device's context is current.
func (on *loaded) enqueue(stream uintptr, l *launch.Launch) error {
	s := on.start(l)
	if err := s.enqueue(stream); err != nil {
		return fmt.Errorf("launch %v (%d blocks): %w", l.Kernel, l.Blocks, err)
	}
	return nil
}

// start is what enqueues a launch.
func (on *loaded) start(l *launch.Launch) start {
	return start{function: on.functions[l.Kernel], blocks: l.Blocks, threads: l.Kernel.Threads(), table: l.Table}
}

// A start is a launch as the driver wants it.
type start struct {
	function        uintptr // CUfunction
	blocks, threads uint32
	table           []uint32 // the only parameter
}

func (s *start) enqueue(stream uintptr) error {
	return check(C.goflat_launch(C.uintptr_t(s.function), C.uint32_t(s.blocks), C.uint32_t(s.threads),
		C.uintptr_t(stream), unsafe.Pointer(&s.table[0])))
}

// idle are the gathers between calls: as many as ever ran at once. A sync.Pool would
// drop them at every garbage collection.
var idle struct {
	sync.Mutex
	first *gather
}

func takeGather(on *loaded, stream uintptr) *gather {
	idle.Lock()
	g := idle.first
	if g != nil {
		idle.first = g.next
	}
	idle.Unlock()
	if g == nil {
		g = new(gather)
		g.launch = g.enqueue
	}
	g.on, g.stream = on, stream
	return g
}

func (g *gather) putBack() {
	g.job, g.plain, g.moves, g.on = launch.Job{}, launch.Plain{}, nil, nil // hold nothing of the caller's
	idle.Lock()
	defer idle.Unlock()
	g.next, idle.first = idle.first, g
}
