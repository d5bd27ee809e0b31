package gpu

// #include "permute.h"
import "C"

import (
	"math/bits"
	"sync"

	"github.com/goflat/goflat/gpu/internal/launch"
)

// A tableMemory lends memory of one device for tables that do not fit into launch
// parameters and for the words of grid barriers, and pinned memory to upload from. It
// keeps what it has: a call allocates only if it needs more than any before it, or
// while others that began earlier are still under way.
//
// Device memory is passed on in the order of streams: whoever gets it lets the stream that
// writes to it wait for the last user's, see [piece.follow]. Pinned memory is written by the host, so it is passed on when the
// device has read it.
type tableMemory struct {
	mutex          sync.Mutex
	device, pinned shelf
}

// maxLent is how many pieces of a kind there are before calls wait for each other
// rather than allocate one more.
const maxLent = 4

// A shelf is memory of one kind, the longest unused first.
type shelf struct {
	pieces   []*piece
	uploads  bool // pieces have a stream for uploads
	allocate func(bytes int64) (uintptr, error)
	free     func(address uintptr) error
}

// A piece is memory that is lent to one call at a time.
type piece struct {
	address uintptr
	bytes   int64
	event   uintptr // CUevent, behind its last use
	stream  uintptr // of that
	lent    bool
	// Of device memory. Uploads have a stream of their own, so that they need not wait for what
	// the user's stream has yet to do; written is an event behind the last.
	uploads, written uintptr
	// It begins with the word of a barrier, which is as it says if counts is true.
	word   launch.BarrierWord
	counts bool
}

// follow lets a stream wait for the last use of the piece. Also where that was on the same
// stream: its handle may be another stream's by now.
func (p *piece) follow(stream uintptr) error {
	return check(C.goflat_stream_wait(C.uintptr_t(stream), C.uintptr_t(p.event)))
}

// uploaded lets a stream wait for what the piece's own stream has been given.
func (p *piece) uploaded(stream uintptr) error {
	if err := check(C.goflat_event_record(C.uintptr_t(p.written), C.uintptr_t(p.uploads))); err != nil {
		return err
	}
	return check(C.goflat_stream_wait(C.uintptr_t(stream), C.uintptr_t(p.written)))
}

func newTableMemory() *tableMemory {
	return &tableMemory{
		device: shelf{
			uploads:  true,
			allocate: func(bytes int64) (uintptr, error) { return value(C.goflat_device_alloc(C.size_t(bytes))) },
			free:     func(address uintptr) error { return check(C.goflat_device_free(C.uintptr_t(address))) },
		},
		pinned: shelf{
			allocate: func(bytes int64) (uintptr, error) { return value(C.goflat_pinned_alloc(C.size_t(bytes))) },
			free:     func(address uintptr) error { return check(C.goflat_pinned_free(C.uintptr_t(address))) },
		},
	}
}

// held is the bytes of device memory, lent or not.
func (m *tableMemory) held() int64 {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	var n int64
	for _, p := range m.device.pieces {
		n += p.bytes
	}
	return n
}

// takeDevice lends device memory for work that is enqueued on a stream from now on, which
// the caller lets follow the last use.
func (m *tableMemory) takeDevice(bytes int64, stream uintptr) (*piece, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	p, err := m.device.forStream(bytes, stream)
	if err == nil {
		p.lent = true
	}
	return p, err
}

// takePinned lends pinned memory that nobody reads any more.
func (m *tableMemory) takePinned(bytes int64) (*piece, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	p, err := m.pinned.forHost(bytes)
	if err == nil {
		p.lent = true
	}
	return p, err
}

// giveBack ends a loan whose last use is enqueued on a stream.
func (m *tableMemory) giveBack(s *shelf, p *piece, stream uintptr) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	p.lent, p.stream = false, stream
	err := check(C.goflat_event_record(C.uintptr_t(p.event), C.uintptr_t(stream)))
	s.remove(p)
	if err != nil { // nobody knows when its use ends: freeing waits
		s.destroy(p)
		return err
	}
	s.pieces = append(s.pieces, p)
	return nil
}

// forStream chooses a piece that was last used on the same stream, or else one that is
// idle, a new one, or any.
func (s *shelf) forStream(bytes int64, stream uintptr) (*piece, error) {
	for _, p := range s.pieces {
		if p.fits(bytes) && p.stream == stream {
			return p, nil
		}
	}
	if p, err := s.idle(bytes); p != nil || err != nil {
		return p, err
	}
	if p := s.fitting(bytes); p != nil && len(s.pieces) >= maxLent {
		return p, nil
	}
	return s.add(bytes)
}

// forHost chooses an idle piece or a new one; if there are many, it waits.
func (s *shelf) forHost(bytes int64) (*piece, error) {
	if p, err := s.idle(bytes); p != nil || err != nil {
		return p, err
	}
	if p := s.fitting(bytes); p != nil && len(s.pieces) >= maxLent {
		return p, check(C.goflat_event_wait(C.uintptr_t(p.event)))
	}
	return s.add(bytes)
}

func (p *piece) fits(bytes int64) bool { return !p.lent && p.bytes >= bytes }

// fitting returns the longest unused piece that is large enough, or nil.
func (s *shelf) fitting(bytes int64) *piece {
	for _, p := range s.pieces {
		if p.fits(bytes) {
			return p
		}
	}
	return nil
}

// idle returns a piece that is large enough and of no use to anyone, or nil.
func (s *shelf) idle(bytes int64) (*piece, error) {
	for _, p := range s.pieces {
		if !p.fits(bytes) {
			continue
		}
		if done, err := p.done(); done || err != nil {
			return p, err
		}
	}
	return nil, nil
}

// done reports whether the work before the piece's event is done.
func (p *piece) done() (bool, error) {
	done, err := value(C.goflat_event_done(C.uintptr_t(p.event)))
	return done != 0, err
}

// add allocates a piece, for which smaller ones make room that nobody uses.
func (s *shelf) add(bytes int64) (*piece, error) {
	if err := s.dropSmaller(bytes); err != nil {
		return nil, err
	}
	p := &piece{bytes: roundUp(bytes)}
	if err := s.fill(p); err != nil {
		s.destroy(p)
		return nil, err
	}
	s.pieces = append(s.pieces, p)
	return p, nil
}

// fill makes what a piece consists of, or a part of it.
func (s *shelf) fill(p *piece) (err error) {
	if p.event, err = value(C.goflat_event_new()); err != nil {
		return err
	}
	if s.uploads {
		if p.written, err = value(C.goflat_event_new()); err != nil {
			return err
		}
		if p.uploads, err = value(C.goflat_stream_new()); err != nil {
			return err
		}
	}
	p.address, err = s.allocate(p.bytes)
	return err
}

func (s *shelf) dropSmaller(bytes int64) error {
	for i := len(s.pieces) - 1; i >= 0; i-- {
		p := s.pieces[i]
		if p.lent || p.bytes >= bytes {
			continue
		}
		done, err := p.done()
		if err != nil {
			return err
		}
		if done {
			s.remove(p)
			s.destroy(p)
		}
	}
	return nil
}

func (s *shelf) remove(p *piece) {
	for i := range s.pieces {
		if s.pieces[i] == p {
			s.pieces = append(s.pieces[:i], s.pieces[i+1:]...)
			return
		}
	}
}

// destroy frees a piece, or what there is of it. Errors are those of earlier work, or it is
// gone anyway.
func (s *shelf) destroy(p *piece) {
	if p.address != 0 {
		_ = s.free(p.address)
	}
	if p.uploads != 0 {
		_ = check(C.goflat_stream_free(C.uintptr_t(p.uploads)))
	}
	for _, event := range []uintptr{p.event, p.written} {
		if event != 0 {
			_ = check(C.goflat_event_free(C.uintptr_t(event)))
		}
	}
}

// free frees everything. Nothing may be lent.
func (m *tableMemory) free() {
	for _, s := range []*shelf{&m.device, &m.pinned} {
		for _, p := range s.pieces {
			s.destroy(p)
		}
		s.pieces = nil
	}
}

// roundUp returns the size to allocate for so many bytes: a power of two from 64 KiB on
// or, since the driver maps device memory in such pages, a multiple of 2 MiB.
func roundUp(bytes int64) int64 {
	const least, page = 64 << 10, 2 << 20
	if bytes > page {
		return (bytes + page - 1) / page * page
	}
	return max(least, int64(1)<<bits.Len64(uint64(bytes-1)))
}
