//go:build goflat_invariants

package flatten

const invariants = true
