package bridge

// #include "own.h"
import "C"

import (
	"math"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu"
)

// The numbers that Python describes a job with, in this order.
const (
	specKeys = iota
	specBatches
	specCode // DLPack's dtype
	specBits
	specLanes
	specDevice // DLPack's device
	specIndex
	specFlags
	specGranule // the allocator rounds storages up to a multiple of so many bytes
	specScratch // bytes of scratch that may be allocated
	specDims    // of a row
	specRooms   // pieces of free room of collected ranges
	specWords
)

// Flags of a spec.
const (
	flagNoAdopt   = 1 // every output is allocated
	flagStrides   = 2 // strides of all entries follow the rows
	flagCollected = 4 // all entries lie in collected ranges
)

// spec is a job as PlanInPlace gets it. Behind the numbers above come the extents of a row, the rows of each entry
// and, if flagged, the strides of each in bytes, then three numbers for each piece of free room: range, begin, end.
type spec struct {
	layout  flatten.Layout
	device  flatten.Device
	flags   int64
	granule uint64
	scratch int64
	strides []int64 // nil: all entries are contiguous
	rooms   []int64
}

func readSpec(address int64) *spec {
	words := wordsAt(address, specWords)
	s := &spec{
		flags: words[specFlags], granule: uint64(words[specGranule]), scratch: words[specScratch],
		device: flatten.Device{Type: int32(words[specDevice]), Index: int32(words[specIndex])},
	}
	s.layout = flatten.Layout{
		NumKeys: int(words[specKeys]), Batches: int(words[specBatches]),
		DType: flatten.DType{Code: uint8(words[specCode]), Bits: uint8(words[specBits]), Lanes: uint16(words[specLanes])},
	}
	dims, entries := words[specDims], words[specKeys]*words[specBatches]
	s.rooms = make([]int64, 3*words[specRooms])
	total := specWords + dims + entries + int64(len(s.rooms))
	if s.flags&flagStrides != 0 {
		s.strides = make([]int64, entries*(dims+1))
		total += int64(len(s.strides))
	}
	rest := wordsAt(address, int(total))[specWords:]
	take := func(n int64) []int64 {
		taken := append([]int64(nil), rest[:n]...)
		rest = rest[n:]
		return taken
	}
	s.layout.RowShape, s.layout.Rows = take(dims), take(entries)
	copy(s.strides, take(int64(len(s.strides))))
	copy(s.rooms, take(int64(len(s.rooms))))
	return s
}

func (s *spec) options() (flatten.Options, error) {
	o := flatten.Options{Cooperative: true, ScratchBytes: s.scratch, NoAdopt: s.flags&flagNoAdopt != 0}
	if s.flags&flagCollected != 0 || s.device.Type != flatten.DeviceCUDA {
		o.TableLimit = math.MaxInt64 // the CPU needs no table
	}
	if s.device.Type != flatten.DeviceCUDA {
		return o, nil
	}
	var err error
	o.Cooperative, err = gpu.Cooperative(int(s.device.Index))
	return o, deviceError(err)
}

// entries describes entries that have strides; nil if none has.
func (s *spec) entries() []flatten.Entry {
	if s.strides == nil {
		return nil
	}
	dims := len(s.layout.RowShape) + 1
	entries := make([]flatten.Entry, len(s.layout.Rows))
	for e, rows := range s.layout.Rows {
		shape := append([]int64{rows}, s.layout.RowShape...)
		view := flatten.View{Shape: shape, Strides: s.strides[e*dims : (e+1)*dims]}
		entries[e] = flatten.Entry{View: view, DType: s.layout.DType, Device: s.device}
	}
	return entries
}

// holdings are the entries' memory in the planner's words.
type holdings struct {
	entries []flatten.Entry
	places  []flatten.Place
	blocks  []flatten.Block
	first   []int // an entry of each block, -1: free room
	ids     map[uint64]int
}

// holdings sorts the entries by storage.
func (s *spec) holdings(records []C.gf_own) (*holdings, error) {
	h := &holdings{entries: s.entries(), ids: map[uint64]int{}}
	for e := range records {
		place, err := h.place(s, e, &records[e])
		if err != nil {
			return nil, err
		}
		h.places = append(h.places, place)
	}
	for i := 0; i < len(s.rooms); i += 3 {
		h.blocks = append(h.blocks, flatten.Block{
			Range: collected(s.rooms[i]), Lo: uint64(s.rooms[i+1]), Hi: uint64(s.rooms[i+2]),
		})
		h.first = append(h.first, -1)
	}
	return h, nil
}

// place finds or makes the block of an entry.
func (h *holdings) place(s *spec, e int, r *C.gf_own) (flatten.Place, error) {
	place := flatten.Place{Addr: uint64(r.address), Block: -1}
	if r.reason > C.GF_OWN_OVERLAP || r.storage == 0 || r.storage_bytes == 0 {
		return place, nil
	}
	id, known := h.ids[uint64(r.storage)]
	if !known {
		block, err := s.block(r)
		if err != nil {
			return place, err
		}
		id = len(h.blocks)
		h.ids[uint64(r.storage)] = id
		h.blocks = append(h.blocks, block)
		h.first = append(h.first, e)
	}
	if r.reason != C.GF_OWN_ADOPTABLE {
		h.blocks[id].Fixed = true
	}
	place.Block = id
	return place, nil
}

// block is the storage of an entry.
func (s *spec) block(r *C.gf_own) (flatten.Block, error) {
	lo := uint64(r.storage_address)
	b := flatten.Block{Lo: lo, Hi: lo + uint64(r.storage_bytes), Bytes: int64(r.storage_bytes)}
	if r.reason == C.GF_OWN_FOREIGN {
		b.Bytes = 0 // the allocator does not count it
	}
	if r.reason == C.GF_OWN_ADOPTABLE && r.flags&C.GF_OWN_IS_ADOPTED == 0 && lo%s.granule == 0 {
		b.Hi = (b.Hi + s.granule - 1) / s.granule * s.granule
	}
	var err error
	b.Range, err = s.rangeOf(lo)
	return b, err
}

// rangeOf names the memory that a run through an address may not leave: the allocation or the mapped range that it
// lies in. On the CPU that is the storage itself.
func (s *spec) rangeOf(address uint64) (int, error) {
	if s.device.Type != flatten.DeviceCUDA {
		return int(address), nil
	}
	if id, _, _, ok := gpu.CollectRange(address); ok {
		return collected(id), nil
	}
	lo, _, _, err := gpu.Allocation(int(s.device.Index), address)
	return int(lo), deviceError(err)
}

// collected is the range of a plan that stands for a collected range: negative, as no address is.
func collected(id int64) int { return -int(id) - 1 }
