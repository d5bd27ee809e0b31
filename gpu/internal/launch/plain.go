package launch

import (
	"fmt"
	"math"

	"github.com/goflat/goflat/flatten"
)

// Plain is a job of contiguous entries that are joined along dimension 0 into contiguous outputs: what a plan of one
// segment an entry says, without the plan, which takes longer to make and to read than the table.
type Plain struct {
	Rows            []int64   // of each entry, key-major
	RowBytes        int64     // at least 0
	Dst             []uintptr // an address a batch
	Src             []uintptr // an address an entry, key-major
	Multiprocessors int       // of the device, at least 1
}

// RunPlain is Run for a plain job. It launches nothing where rows are negative or have 2^63 bytes and more in all.
func (g *Gather) RunPlain(job *Plain, launch func(*Launch) error) error {
	c, err := job.count()
	if err != nil {
		return err
	}
	g.begin(choose(&c, job.Multiprocessors), job.Multiprocessors, launch)
	for b := range job.Dst {
		g.addBatch(job, b)
	}
	return g.end()
}

// count counts the entries that have bytes, and the batches they come from.
func (job *Plain) count() (c census, err error) {
	left := math.MaxInt64 / max(job.RowBytes, 1)
	lengths := int64(0)
	for b := range job.Dst {
		var segments, bytes [2]int64 // of short entries and others
		for e := b; e < len(job.Rows); e += len(job.Dst) {
			if uint64(job.Rows[e]) > uint64(left) { // also true for a negative count
				return c, fmt.Errorf("entry %d: got %d rows, want 0 or more, and less than 2^63 bytes in all", e, job.Rows[e])
			}
			left -= job.Rows[e]
			n := job.Rows[e] * job.RowBytes
			if n == 0 {
				continue
			}
			i := 0
			if n >= shortBytes {
				i = 1
			}
			segments[i]++
			bytes[i] += n
			lengths |= n
		}
		for i, class := range [2]int{short, long} {
			c.classes[class].add(tally{segments: int(segments[i]), bytes: bytes[i]})
		}
		if segments[0]+segments[1] > 0 {
			c.batches++
		}
	}
	c.plain.lengths = uint64(lengths)
	c.plain.entries(job.Src, nil, flatten.Device{})
	return c, nil
}

// addBatch writes the entries of one output into the tables.
func (g *Gather) addBatch(job *Plain, b int) {
	dst := uint64(job.Dst[b])
	for e := b; e < len(job.Rows); {
		if n := job.Rows[e] * job.RowBytes; n != 0 {
			g.addPlain(g.route.table[plainClass(n)], dst, uint64(job.Src[e]), n)
			dst += uint64(n)
		}
		e, dst = g.addFollowing(job, e+len(job.Dst), dst)
	}
}

// addFollowing adds the entries of an output from e on for as long as they belong into the table of the first and fit,
// and follow what was added last, and returns where that ends. It is addPlain for the ordinary case, as addNeighbours is.
func (g *Gather) addFollowing(job *Plain, e int, dst uint64) (int, uint64) {
	if e >= len(job.Rows) || job.Rows[e] == 0 {
		return e, dst
	}
	into := g.route.table[plainClass(job.Rows[e]*job.RowBytes)]
	t := &g.tables[into]
	if t.plain == 0 || dst-uint64(t.numbers) != t.base {
		return e, dst
	}
	least, lengths := g.route.lengths(into)
	w, at := t.writer()
	number, end, first := int64(t.numbers), t.srcEnd, t.numbers
	rows, step := job.Rows, len(job.Dst)
	for ; e < len(rows); e += step {
		n, src := rows[e]*job.RowBytes, uint64(job.Src[e])
		if n == 0 {
			continue
		}
		if uint64(n-least) >= lengths || !w.fits(at, src, number+n) {
			break
		}
		if src != end {
			w.put(at, src, uint32(number))
			at += w.size
		}
		number += n
		end = src + uint64(n)
	}
	t.written(&w, at, number, end)
	return e, dst + uint64(t.numbers-first)
}
