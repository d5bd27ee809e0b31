package flatten

// A strip is the innermost loop of a strided move: n runs of bytes bytes each.
type strip struct {
	dst, src         int64 // first byte of the first run
	dstStep, srcStep int64 // bytes from run to run
	n, bytes         int64
}

// stripFor is the mover for runs of the given size. Elements have the sizes
// 1 to 16; for these a load and a store of that size, which the compiler makes
// of an array copy, beat a call of memmove (BenchmarkExecuteStrided), and need no alignment.
func stripFor(bytes int64) func(dst, src []byte, s strip) {
	switch bytes {
	case 1:
		return strip1
	case 2:
		return strip2
	case 4:
		return strip4
	case 8:
		return strip8
	case 16:
		return strip16
	default:
		return stripAny
	}
}

func stripAny(dst, src []byte, s strip) {
	for range s.n {
		copy(dst[s.dst:s.dst+s.bytes], src[s.src:s.src+s.bytes])
		s.dst += s.dstStep
		s.src += s.srcStep
	}
}

func strip1(dst, src []byte, s strip) {
	for range s.n {
		dst[s.dst] = src[s.src]
		s.dst += s.dstStep
		s.src += s.srcStep
	}
}

func strip2(dst, src []byte, s strip) {
	for range s.n {
		*(*[2]byte)(dst[s.dst:]) = *(*[2]byte)(src[s.src:])
		s.dst += s.dstStep
		s.src += s.srcStep
	}
}

func strip4(dst, src []byte, s strip) {
	for range s.n {
		*(*[4]byte)(dst[s.dst:]) = *(*[4]byte)(src[s.src:])
		s.dst += s.dstStep
		s.src += s.srcStep
	}
}

func strip8(dst, src []byte, s strip) {
	for range s.n {
		*(*[8]byte)(dst[s.dst:]) = *(*[8]byte)(src[s.src:])
		s.dst += s.dstStep
		s.src += s.srcStep
	}
}

func strip16(dst, src []byte, s strip) {
	for range s.n {
		*(*[16]byte)(dst[s.dst:]) = *(*[16]byte)(src[s.src:])
		s.dst += s.dstStep
		s.src += s.srcStep
	}
}
