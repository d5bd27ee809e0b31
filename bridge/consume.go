package bridge

// #include "own.h"
import "C"

import (
	"encoding/json"
	"runtime"
	"sync"

	"github.com/goflat/goflat/flatten"
)

// A consumption is the plan of one flatten_ on one device, from PlanInPlace to EndInPlace. It holds addresses and no
// references: Python keeps the entries alive while steps run.
type consumption struct {
	plan   *flatten.InPlace
	device flatten.Device
	bases  map[int32]uint64 // where spilled outputs and the scratch lie, as soon as they are allocated
	owner  []int            // block of each entry, -1: none
	first  []int            // an entry of each block, -1: free room
}

var consumptions struct {
	sync.Mutex
	byHandle map[int64]*consumption
	last     int64
}

// PlanInPlace plans how to turn the entries of one device into outputs within their own memory. spec is the address of
// 64-bit numbers that say what the job looks like (see spec), records that of one gf_own for each entry. It returns a
// handle for the functions below, to be ended by EndInPlace; errors are those of flatten.PlanInPlace.
func PlanInPlace(spec, records int64) (handle int64, err error) {
	defer recovered(&err)
	s := readSpec(spec)
	h, err := s.holdings(ownRecords(records, len(s.layout.Rows)))
	if err != nil {
		return 0, wire(err)
	}
	o, err := s.options()
	if err != nil {
		return 0, wire(err)
	}
	plan, err := flatten.PlanInPlace(&s.layout, h.entries, h.places, h.blocks, o)
	if err != nil {
		return 0, wire(err)
	}
	c := &consumption{plan: plan, device: s.device, bases: map[int32]uint64{}, first: h.first}
	for _, p := range h.places {
		c.owner = append(c.owner, p.Block)
	}
	return c.register(), nil
}

func (c *consumption) register() int64 {
	consumptions.Lock()
	defer consumptions.Unlock()
	if consumptions.byHandle == nil {
		consumptions.byHandle = map[int64]*consumption{}
	}
	consumptions.last++
	consumptions.byHandle[consumptions.last] = c
	return consumptions.last
}

func consumptionOf(handle int64) *consumption {
	consumptions.Lock()
	defer consumptions.Unlock()
	return consumptions.byHandle[handle]
}

// EndInPlace forgets a plan and returns how many are left.
func EndInPlace(handle int64) int64 {
	consumptions.Lock()
	defer consumptions.Unlock()
	delete(consumptions.byHandle, handle)
	return int64(len(consumptions.byHandle))
}

// LiveInPlace is the number of plans that were made and not ended; 0 between calls.
func LiveInPlace() int64 {
	consumptions.Lock()
	defer consumptions.Unlock()
	return int64(len(consumptions.byHandle))
}

// report is what Python needs to know of a plan. Entries are named by their index in the job.
type report struct {
	Strategy  string       `json:"strategy"`
	Growth    int64        `json:"growth"`
	Tables    int64        `json:"tables"`
	Scratch   int64        `json:"scratch"`
	Reserved  int64        `json:"reserved_growth"`
	MovedRows int64        `json:"moved_rows"`
	Ranges    int          `json:"ranges"` // allocations that the entries' memory lies in
	Outs      []outReport  `json:"outs"`
	Steps     []stepReport `json:"steps"`
}

// outReport says where an output lies: at an address, or it is spilled. Under has an entry of each storage under it.
type outReport struct {
	Rows    int64  `json:"rows"`
	Address uint64 `json:"address"`
	Spilled bool   `json:"spilled"`
	Under   []int  `json:"under"`
}

// stepReport is a step; Entries are those that a free step drops.
type stepReport struct {
	Kind    string `json:"kind"`
	Batch   int    `json:"batch"`
	Entries []int  `json:"entries"`
}

var stepNames = [...]string{
	flatten.Alloc: "alloc", flatten.AllocScratch: "scratch", flatten.Gather: "move", flatten.Permute: "move",
	flatten.Free: "free", flatten.FreeScratch: "drop scratch",
}

// InPlaceReport describes a plan as JSON.
func InPlaceReport(handle int64) string {
	text, err := json.Marshal(consumptionOf(handle).report())
	if err != nil { // of numbers and names: cannot be
		return ""
	}
	return string(text)
}

func (c *consumption) report() *report {
	p := c.plan
	r := &report{
		Strategy: p.Strategy, Growth: p.Growth, Tables: p.Tables, Scratch: p.Scratch, Reserved: p.ReservedGrowth,
		MovedRows: p.MovedRows, Ranges: c.ranges(), Outs: make([]outReport, len(p.Outs)), Steps: make([]stepReport, len(p.Steps)),
	}
	for b, out := range p.Outs {
		r.Outs[b] = outReport{Rows: p.Layout.BatchRows(b), Address: out.Off, Spilled: out.Base != flatten.Absolute, Under: []int{}}
		if !r.Outs[b].Spilled {
			r.Outs[b].Under = c.entriesUnder(p.Under[b])
		}
	}
	members := c.members()
	for i := range p.Steps {
		s := &p.Steps[i]
		r.Steps[i] = stepReport{Kind: stepNames[s.Kind], Batch: s.Batch, Entries: []int{}}
		for _, block := range s.Blocks {
			r.Steps[i].Entries = append(r.Steps[i].Entries, members[block]...)
		}
	}
	return r
}

func (c *consumption) ranges() int {
	seen := map[int]bool{}
	for i, block := range c.plan.Blocks {
		if c.first[i] >= 0 {
			seen[block.Range] = true
		}
	}
	return len(seen)
}

// entriesUnder returns an entry of each block that is a storage.
func (c *consumption) entriesUnder(blocks []int) []int {
	entries := []int{}
	for _, block := range blocks {
		if c.first[block] >= 0 {
			entries = append(entries, c.first[block])
		}
	}
	return entries
}

// members are the entries of each block.
func (c *consumption) members() [][]int {
	members := make([][]int, len(c.plan.Blocks))
	for e, block := range c.owner {
		if block >= 0 {
			members[block] = append(members[block], e)
		}
	}
	return members
}

// SetBase tells where spilled output `base`, or the scratch (-2), was allocated. It returns the address.
func SetBase(handle, base, address int64) int64 {
	consumptionOf(handle).bases[int32(base)] = uint64(address)
	return address
}

// RunStep moves the bytes of one step, on a CUDA device on the given stream. It returns 0 when they are enqueued there,
// or in place on the CPU.
//
// alone, if not 0, is the address of four 64-bit numbers: those of a list of entries, of how many Python references to
// each are accounted for besides the list's, of their gf_own records, and of how many outputs (int32) use their storages
// by now. If somebody has got hold of one since the records were made, or made it lie elsewhere, nothing moves, and its
// number in the list, counted from 1, is returned. Between that look and the move no Python code runs on this thread.
func RunStep(handle, step, stream, alone int64) (changed int64, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer recovered(&err)
	if alone != 0 {
		if changed, err = changedEntry(alone); changed != 0 || err != nil {
			return changed, err
		}
	}
	return 0, wire(consumptionOf(handle).run(int(step), uintptr(stream)))
}

// FailedStep says as JSON what is left after step number `step` failed: the outputs that have all their bytes, and the
// entries that are used up. The number of steps stands for a failure after the last.
func FailedStep(handle, step int64) string {
	c := consumptionOf(handle)
	finished, used := c.after(int(step))
	left := struct {
		Outputs []int `json:"outputs"`
		Entries []int `json:"entries"`
	}{[]int{}, []int{}}
	left.Outputs = append(left.Outputs, finished...)
	for e, block := range c.owner {
		if block >= 0 && used[block] {
			left.Entries = append(left.Entries, e)
		}
	}
	text, err := json.Marshal(left)
	if err != nil {
		return ""
	}
	return string(text)
}
