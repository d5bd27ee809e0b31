//go:build !systemcuda

package libcuda

// -L finds the empty libcuda.a before any libcuda of the system's, and
// --as-needed drops the latter should it be found: both only if these flags come before
// those of gorgonia.org/cu, that is if available.go of package gpu, its first file,
// imports this package and not that one. TestSharedLibraryNeedsNoDriver watches it.

// #cgo LDFLAGS: -L${SRCDIR} -ldl -Wl,--as-needed
import "C"
