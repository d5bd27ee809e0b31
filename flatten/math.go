package flatten

import (
	"math"
	"math/bits"
)

// mul is a*b; ok is false where the product does not fit in an int64.
func mul(a, b int64) (product int64, ok bool) {
	hi, lo := bits.Mul64(magnitude(a), magnitude(b))
	if hi != 0 || lo > math.MaxInt64 {
		return 0, false
	}
	if (a < 0) != (b < 0) {
		return -int64(lo), true
	}
	return int64(lo), true
}

// A divisor divides multiples of a number, by a multiplication: the odd part of the number
// has an inverse modulo 2^64 (Granlund and Montgomery, PLDI 1994, section 9). Plans divide
// several times an entry.
type divisor struct {
	inverse uint64
	shift   int
}

// divisorOf is the divisor for n, which is not 0.
func divisorOf(n uint64) divisor {
	d := divisor{shift: bits.TrailingZeros64(n)}
	odd := n >> d.shift
	d.inverse = odd // right in 3 bits, and in twice as many after each step of Newton's
	for range 5 {
		d.inverse *= 2 - odd*d.inverse
	}
	return d
}

// of is multiple divided by the number.
func (d divisor) of(multiple uint64) uint64 { return multiple >> d.shift * d.inverse }

func magnitude(a int64) uint64 {
	if a < 0 {
		return -uint64(a)
	}
	return uint64(a)
}

// product multiplies extents that are not negative; a 0 anywhere makes it 0,
// whatever the others are. ok is false where it does not fit in an int64.
func product(extents []int64, unit int64) (n int64, ok bool) {
	n, ok = unit, true
	for _, extent := range extents {
		if extent == 0 {
			return 0, true
		}
		if ok {
			n, ok = mul(n, extent)
		}
	}
	return n, ok
}
