package flatten

// cutAlign is what cuts inside a segment are rounded down to, in bytes: a cache
// line, so that two workers do not write the same one of an aligned output.
const cutAlign = 64

// A cut is a place between two bytes of a plan's payload.
type cut struct {
	seg int   // segment
	at  int64 // bytes of its payload before the cut
}

// cuts are the ends of n shares of about equal bytes, from the plan's begin to
// its end. total is the plan's payload.
func (p *Plan) cuts(total int64, n int) []cut {
	cuts := make([]cut, 1, n+1)
	var before int64 // payload of the segments before i
	for i := range p.Segments {
		payload := p.Segments[i].Payload()
		for len(cuts) < n {
			at := part(total, len(cuts), n) - before
			if at >= payload {
				break
			}
			cuts = append(cuts, cut{seg: i, at: at &^ (cutAlign - 1)})
		}
		before += payload
	}
	return append(cuts, cut{seg: len(p.Segments)})
}

// part is i/n of total, without overflow.
func part(total int64, i, n int) int64 {
	return total/int64(n)*int64(i) + total%int64(n)*int64(i)/int64(n)
}
