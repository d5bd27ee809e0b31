package gpu

// #include "permute.h"
import "C"

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu/internal/launch"
)

// Permute moves units of memory on a CUDA device in place, as the plain loop of
// [flatten.Permutation] would, without scratch. It is one launch, but for units of
// gigabytes. stream is as for [Gather].
//
// The caller makes sure that nothing else touches the positions until the stream has
// passed this point; p may change when Permute has returned.
//
// A table of up to 32 KB travels as launch parameter. Larger ones, and the word that a
// barrier needs, lie in device memory of goflat's own, see [Held]. Permute allocates it when it
// has less than it needs, which waits for the device; a warm call neither allocates nor
// waits, unless it has so many calls ahead of the device that it needs their memory.
//
// It returns [ErrCapturing] while the stream is captured into a graph, an
// [UnavailableError], or an [Error]; after an Error of a launch the positions' contents are
// undefined.
func Permute(device int, stream uintptr, p *flatten.Permutation) error {
	if p.Units() == 0 {
		return nil
	}
	on, err := usePermuter(device)
	if err != nil {
		return err
	}
	return on.permute(stream, p)
}

// Cooperative reports whether a device has cooperative launches. Without them Permute
// works, but long chains take long.
func Cooperative(device int) (bool, error) {
	if _, err := find(device); err != nil {
		return false, err
	}
	cooperative, err := cu.Device(device).Attribute(cooperativeLaunch)
	return cooperative != 0, failure("cuDeviceGetAttribute", err)
}

// Held returns the bytes of device memory that [Permute] keeps for tables on a device. It
// does not open the driver: devices that nothing has used, and those that are not there,
// hold 0.
func Held(device int) int64 {
	if !listed.Load() {
		return 0
	}
	d, err := find(device)
	if err != nil {
		return 0
	}
	if p := d.permuter.Load(); p != nil {
		return p.memory.held()
	}
	return 0
}

func (p *permuter) permute(stream uintptr, perm *flatten.Permutation) error {
	c := takePermuteCall()
	defer c.putBack()
	c.on, c.stream = p, stream
	c.options = launch.PermuteOptions{Resident: &p.resident}
	if !c.tables.Plan(perm, &c.options) {
		return nil
	}
	return c.run()
}

// A permuteCall is the memory of one call of Permute, used again by later ones.
type permuteCall struct {
	tables  launch.Permute
	options launch.PermuteOptions
	on      *permuter
	stream  uintptr
	launch  func(*launch.PermuteLaunch) error // c.enqueueLaunch, made once
	enqueue func() error                      // c.enqueueAll, made once
	next    *permuteCall                      // in the list of idle ones
}

// run enqueues everything with the device's context current. Captures in other threads
// do not mind.
func (c *permuteCall) run() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s, err := enter(c.on.on.context)
	if err != nil {
		return err
	}
	return s.leave(relaxed(c.enqueue))
}

func (c *permuteCall) enqueueAll() error {
	capturing, err := value(C.goflat_is_capturing(C.uintptr_t(c.stream)))
	if err != nil {
		return err
	}
	if capturing != 0 {
		return fmt.Errorf("permute: %w", ErrCapturing)
	}
	if !c.tables.Barrier() && !c.tables.Far() {
		return c.tables.Launches(nil, 0, c.launch)
	}
	memory := c.on.memory
	p, err := memory.takeDevice(c.bytes(), c.stream)
	if err != nil {
		return fmt.Errorf("memory for tables: %w", err)
	}
	err = c.launchWith(p)
	if failed := memory.giveBack(&memory.device, p, c.stream); err == nil {
		err = failed
	}
	return err
}

// tableOffset is where the table lies behind the barrier's word, in bytes: blocks that
// wait must not take the cache line from those that read.
const tableOffset = 128

// bytes is how much device memory the call needs.
func (c *permuteCall) bytes() int64 {
	if !c.tables.Far() {
		return tableOffset
	}
	return tableOffset + 4*int64(c.tables.TableWords())
}

// launchWith prepares device memory and launches.
func (c *permuteCall) launchWith(p *piece) error {
	if err := c.fillIn(p); err != nil {
		return err
	}
	err := c.tables.Launches(&p.word, uint64(p.address)+tableOffset, c.launch)
	p.counts = p.counts && err == nil
	return err
}

// fillIn writes to device memory what the launch reads, behind its last use.
func (c *permuteCall) fillIn(p *piece) error {
	var err error
	if c.tables.Far() {
		err = c.upload(p)
	} else {
		err = p.follow(c.stream)
	}
	if err == nil && c.tables.Barrier() && !p.counts {
		err = c.reset(p)
	}
	return err
}

// reset zeroes the barrier's word, before its first use and after a launch that has failed.
// With a zero before every barrier the driver would be called twice for small jobs, where
// calls are what takes long.
func (c *permuteCall) reset(p *piece) error {
	if err := check(C.goflat_zero_word(C.uintptr_t(p.address), C.uintptr_t(c.stream))); err != nil {
		return fmt.Errorf("reset barrier: %w", err)
	}
	p.word, p.counts = launch.BarrierWord{Address: uint64(p.address)}, true
	return nil
}

// upload copies the table.
func (c *permuteCall) upload(p *piece) error {
	if err := c.copyTable(p); err != nil {
		return fmt.Errorf("upload table (%d bytes): %w", 4*c.tables.TableWords(), err)
	}
	return nil
}

// copyTable writes the table to pinned memory and enqueues the copy on the memory's own
// stream, where it need not wait for what the caller's has yet to do. The launch waits for both. On
// an H200 a table of 240 KB, for 60,000 rows of 50 KB, takes 15 µs to copy, of 1.6 ms in all; one of
// 6.6 MB, for 1.6 million rows of 2 KB, 0.3 ms of 2.1, and about 0.5 ms to write. A stream that
// has as much to do meanwhile hides that.
func (c *permuteCall) copyTable(to *piece) error {
	memory := c.on.memory
	words := c.tables.TableWords()
	from, err := memory.takePinned(4 * int64(words))
	if err != nil {
		return err
	}
	c.tables.Write(hostWords(from.address, words))
	if err = to.follow(to.uploads); err == nil {
		err = check(C.goflat_upload(C.uintptr_t(to.address)+tableOffset, C.uintptr_t(from.address), C.size_t(4*words), C.uintptr_t(to.uploads)))
	}
	if failed := memory.giveBack(&memory.pinned, from, to.uploads); err == nil {
		err = failed
	}
	if err == nil {
		err = to.uploaded(c.stream)
	}
	return err
}

func (c *permuteCall) enqueueLaunch(l *launch.PermuteLaunch) error {
	function := C.uintptr_t(c.on.functions[l.Kernel][l.Place])
	blocks, threads, stream := C.uint32_t(l.Blocks), C.uint32_t(l.Threads), C.uintptr_t(c.stream)
	var s C.goflat_status
	if l.Cooperative {
		s = C.goflat_cooperate(function, blocks, threads, stream, unsafe.Pointer(&l.Parameters[0]))
	} else {
		s = C.goflat_launch(function, blocks, threads, stream, unsafe.Pointer(&l.Parameters[0]))
	}
	if err := check(s); err != nil {
		return fmt.Errorf("launch %v%s (%d blocks): %w", l.Kernel, l.Place.Suffix(), l.Blocks, err)
	}
	return nil
}

// idlePermutes are the calls between uses, as idle for gathers.
var idlePermutes struct {
	sync.Mutex
	first *permuteCall
}

func takePermuteCall() *permuteCall {
	idlePermutes.Lock()
	defer idlePermutes.Unlock()
	c := idlePermutes.first
	if c == nil {
		c = new(permuteCall)
		c.launch, c.enqueue = c.enqueueLaunch, c.enqueueAll
		return c
	}
	idlePermutes.first = c.next
	return c
}

func (c *permuteCall) putBack() {
	c.tables.Forget() // hold nothing of the caller's
	c.on = nil
	idlePermutes.Lock()
	defer idlePermutes.Unlock()
	c.next, idlePermutes.first = idlePermutes.first, c
}
