package bridge

// #include "job.h"
import "C"

import (
	"runtime"
	"slices"
	"sync"

	"github.com/goflat/goflat/flatten"
)

// Cast is Flatten with a conversion to the dtype of the tensor at the address like. On the CPU, where torch's loops have
// bits of their own for NaNs, it makes the outputs and leaves it to Python to fill them: status 7. Status 5 asks
// for Prove: nobody has compared these conversions with torch's yet on a device of the job. rules of 0 or more are a
// trial, which takes them for the truth.
func Cast(features, outs, result, dim, flags, like, rules int64) (status int64, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer recovered(&err)
	j, err := open(features, result, dim, flags, like)
	if err != nil {
		return 0, wire(err)
	}
	defer j.abandon()
	j.trial = rules
	s, err := j.run(outs, dim)
	return int64(s), wire(err)
}

// noTrial: what conversions give has to have been proved.
const noTrial = -1

// A proof is what comparisons with torch have shown of conversions to a type on a device. Bit f stands for those from
// type f.
type proof struct {
	rules        flatten.Rules
	tried, right int64
}

var proofs struct {
	sync.RWMutex
	all map[int32]*[flatten.NumFloats]*proof // by device
}

// Prove says that on a CUDA device, under rules, conversions to a type from the types whose bits are set in tried have
// been compared with torch's, and which were right. Types are numbered as in package flatten. It returns 0.
func Prove(device, to, rules, tried, right int64) int64 {
	proofs.Lock()
	defer proofs.Unlock()
	if proofs.all == nil {
		proofs.all = map[int32]*[flatten.NumFloats]*proof{}
	}
	if proofs.all[int32(device)] == nil {
		proofs.all[int32(device)] = new([flatten.NumFloats]*proof)
	}
	all := proofs.all[int32(device)]
	p := proof{rules: flatten.Rules(rules), tried: tried, right: right}
	if old := all[to]; old != nil {
		p.tried, p.right = old.tried|tried, old.right&^tried|right
	}
	all[to] = &p
	return 0
}

// proved returns the proof for a device, or nil.
func proved(device flatten.Device, to flatten.Float) *proof {
	proofs.RLock()
	defer proofs.RUnlock()
	if all := proofs.all[device.Index]; all != nil {
		return all[to]
	}
	return nil
}

// describeCast is describe for a job that converts. Where that is not done here, the status says so; where all entries
// have the dtype already, the job is an ordinary one.
func (j *job) describeCast(dim int) (C.int, error) {
	dtype := j.c.like_dtype
	target := flatten.DType{Code: uint8(dtype.code), Bits: uint8(dtype.bits), Lanes: uint16(dtype.lanes)}
	to, known := flatten.FloatOf(target)
	sources, ok := j.sources()
	if !known || !ok {
		return C.GF_FALLBACK, nil
	}
	j.target = to
	if sources == 1<<to {
		return C.GF_DONE, j.describeAll(dim, j.entries)
	}
	j.casting = true
	if err := j.describeAll(dim, j.countEntries()); err != nil {
		return 0, err
	}
	j.layout = *j.layout.InElements()
	return j.look(sources), nil
}

// sources are the types of all entries as bits; false if one is none of those that are converted here.
func (j *job) sources() (bits int64, ok bool) {
	if j.uniform {
		f, ok := flatten.FloatOf(dtypeOf(j.array(0)))
		return 1 << f, ok
	}
	for e := range j.entries {
		f, ok := flatten.FloatOf(j.entries[e].DType)
		if !ok {
			return 0, false
		}
		bits |= 1 << f
	}
	return bits, true
}

// look finds the rules for all devices of the job, which have to agree.
func (j *job) look(sources int64) C.int {
	if j.trial != noTrial {
		j.rules = flatten.Rules(j.trial)
		return C.GF_DONE
	}
	for b, device := range j.layout.Devices {
		if device.Type == flatten.DeviceCPU {
			continue
		}
		if device.Type != flatten.DeviceCUDA {
			return C.GF_FALLBACK
		}
		p := proved(device, j.target)
		if p == nil || sources&^p.tried != 0 {
			return C.GF_UNPROVED
		}
		if sources&^p.right != 0 || b > 0 && p.rules != j.rules {
			return C.GF_FALLBACK
		}
		j.rules = p.rules
	}
	return C.GF_DONE
}

// makeToFill makes new outputs for torch to fill, if it converts every entry straight into its rows: see is_direct in
// python/goflat/_converting.py.
func (j *job) makeToFill(outs int64) (C.int, error) {
	if j.c.autograd == C.GF_AUTOGRAD_RECORDING { // outputs are filled before autograd is told of them
		return C.GF_GRAD, nil
	}
	outer := int64(1)
	for _, n := range j.layout.RowShape[:j.layout.Dim] {
		outer *= n
	}
	if outs != 0 || outer != 1 || j.layout.Legacy != nil {
		return C.GF_FALLBACK, nil
	}
	for e := range j.entries {
		if j.entries[e].Strides != nil {
			return C.GF_FALLBACK, nil
		}
	}
	if j.c.flags&C.GF_FLAG_PACKED != 0 {
		if err := j.pack(); err != nil {
			return 0, err
		}
	}
	if status, err := j.makeOutputs(j.batchRows()); status != C.GF_DONE || err != nil {
		return status, err
	}
	return C.GF_FILL, nil
}

// onCPU reports whether all batches are on the CPU.
func (j *job) onCPU() bool {
	return !slices.ContainsFunc(j.layout.Devices, func(d flatten.Device) bool { return d.Type != flatten.DeviceCPU })
}

// countEntries are the entries in elements, in the order they have now.
func (j *job) countEntries() []flatten.Entry {
	j.counted = j.counted[:0]
	for e := range j.entries {
		j.counted = append(j.counted, j.entries[e].InElements())
	}
	return j.counted
}

// countOuts is countEntries for the caller's outputs; nil if there are none.
func (j *job) countOuts() []flatten.View {
	if j.outs == nil {
		return nil
	}
	j.countedOut = j.countedOut[:0]
	for b := range j.outs {
		j.countedOut = append(j.countedOut, j.outs[b].InElements(j.target.Bytes()))
	}
	return j.countedOut
}

// cast is the plan and what it converts.
func (j *job) cast() *flatten.Cast {
	j.from = j.from[:0]
	for e := range j.layout.Rows {
		j.from = append(j.from, j.fromOf(e))
	}
	return &flatten.Cast{Plan: &j.plan, To: j.target, From: j.from, Rules: j.rules}
}

// fromOf is the type of entry i of the plan.
func (j *job) fromOf(i int) flatten.Float {
	dtype := dtypeOf(j.array(0))
	if len(j.entries) != 0 {
		dtype = j.entries[i].DType
	}
	f, _ := flatten.FloatOf(dtype)
	return f
}

// checkCastOverlap is checkOverlap for a job that converts. Where an output may share bytes with an entry it leaves the
// answer to the fall-back, since elements of several sizes interleave in more ways than CheckOverlap knows.
func (j *job) checkCastOverlap() (C.int, error) {
	j.outMemory = j.outMemory[:0]
	for b, view := range j.outs {
		j.outMemory = append(j.outMemory, flatten.Memory{View: view, Addr: j.outAddr(b)})
	}
	outputs := j.layout
	outputs.DType = j.target.DType()
	if err := outputs.CheckOverlap(j.outMemory, nil); err != nil {
		return 0, err
	}
	var ranges []uint64 // begin and end of every output
	for _, m := range j.outMemory {
		lo, hi := m.Span(j.target.Bytes())
		ranges = append(ranges, m.Addr+uint64(lo), m.Addr+uint64(hi))
	}
	j.counts = j.counts[:0]
	for i, rows := range j.layout.Rows {
		at := j.addr(j.slot(i))
		lo, hi := j.extent(i, rows).Span(j.fromOf(i).Bytes())
		if meetsAny(at+uint64(lo), at+uint64(hi), ranges) {
			return C.GF_FALLBACK, nil
		}
	}
	return C.GF_DONE, nil
}

// meetsAny reports whether [lo, hi) shares an address with one of the ranges.
func meetsAny(lo, hi uint64, ranges []uint64) bool {
	for pair := range slices.Chunk(ranges, 2) {
		if lo < pair[1] && pair[0] < hi {
			return true
		}
	}
	return false
}
