//go:build systemcuda

package libcuda

// #cgo LDFLAGS: -lcuda
import "C"
