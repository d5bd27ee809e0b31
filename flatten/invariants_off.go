//go:build !goflat_invariants

package flatten

// invariants says whether plans are checked after they are built; it costs
// time and, for small outputs, memory. On with `-tags goflat_invariants`.
const invariants = false
