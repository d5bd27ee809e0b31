package flatten

// A Permutation moves units of memory in place. Position v stands for the Unit
// bytes from address Origin + v*Grain on; no two positions share a byte. Chains
// of positions lie end to end in Pos. Along a chain every position takes the unit
// of the next one:
//
//	closed chain 4 7 5:   [4] <- [7] <- [5] <- what [4] was     nothing is lost
//	open chain   4 7 5:   [4] <- [7] <- [5]                     [4] was free, [5] becomes free
//
// A position occurs once at most, so chains may run in any order, also at once.
type Permutation struct {
	Unit   int64    // bytes that move together, 1 or more
	Origin uint64   // address of position 0
	Grain  int64    // bytes from position to position, a power of two up to maxGrain
	Pos    []uint32 // below 1<<31: kernels use the top bit as a mark
	Ends   []int32  // index in Pos behind each chain
	Closed []bool   // whether the last of a chain takes the first's unit; else it is only read
}

// maxGrain bounds Grain: with 4096 bytes a permutation reaches over 8 TiB, and
// finer alignment than that is of no use to a kernel.
const maxGrain = 4096

// maxGroups is the most groups into which a launch cuts the chains, one word of
// the table each.
const maxGroups = 16384

// TableBytes is the device memory, in bytes, that a launch needs at most to
// describe the permutation.
func (p *Permutation) TableBytes() int64 {
	return tableBytes(int64(len(p.Pos)))
}

// tableBytes is TableBytes for n positions.
func tableBytes(n int64) int64 {
	return 4*n + 4*min(n/2+1, maxGroups)
}

// Units is the number of units that the permutation moves.
func (p *Permutation) Units() int64 {
	n := int64(len(p.Pos))
	for _, closed := range p.Closed {
		if !closed {
			n--
		}
	}
	return n
}

// address is where position v begins.
func (p *Permutation) address(v uint32) uint64 {
	return p.Origin + uint64(v)*uint64(p.Grain)
}

// chain is the positions of chain i.
func (p *Permutation) chain(i int) []uint32 {
	first := int32(0)
	if i > 0 {
		first = p.Ends[i-1]
	}
	return p.Pos[first:p.Ends[i]]
}

// grainFor is the largest grain that divides gcd, the gcd of the unit and of the
// steps from the origin to all positions.
func grainFor(gcd uint64) int64 {
	grain := uint64(maxGrain)
	for gcd%grain != 0 {
		grain /= 2
	}
	return int64(grain)
}
