package flatten

// plan chooses how to do the job.
func (j *inPlaceJob) plan() *InPlace {
	if !j.o.NoAdopt {
		if pl := j.natural(); pl != nil {
			return j.assemble(pl, nil, 0, nil)
		}
	}
	return j.assemble(j.spilled(), nil, 0, nil)
}

// natural is the placement that moves nothing, or nil.
func (j *inPlaceJob) natural() *placement {
	pl := j.spilled()
	for b := range j.l.Batches {
		segments := j.segments(b)
		if len(segments) == 0 {
			continue
		}
		s := &segments[0]
		pl.put(b, j.places[s.Entry].Addr+uint64(s.Src-s.Dst))
		for i := range segments {
			if !j.stays(pl, &segments[i]) {
				return nil
			}
		}
		if !j.inOneRun(pl.at[b], pl.at[b]+uint64(j.outBytes[b]), s.Entry) {
			return nil
		}
	}
	return pl
}

// inOneRun reports whether [lo, hi) lies in the run of entry e.
func (j *inPlaceJob) inOneRun(lo, hi uint64, e int) bool {
	r := j.runs[j.runOf[j.places[e].Block]]
	return r.Lo <= lo && hi <= r.Hi
}
