//go:build !systemcuda

package libcuda

// -L finds the linker script libcuda.a before any libcuda of the system's.

// #cgo LDFLAGS: -L${SRCDIR} -ldl -Wl,--as-needed
import "C"
