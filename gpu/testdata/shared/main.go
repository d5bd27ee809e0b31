// Command shared is package gpu as a C shared library, for the tests of how it loads.
package main

import "C"

import "github.com/goflat/goflat/gpu"

// goflat_available returns gpu.Available's text, empty for nil. The caller frees it.
//
//export goflat_available
func goflat_available() *C.char {
	if err := gpu.Available(); err != nil {
		return C.CString(err.Error())
	}
	return C.CString("")
}

func main() {}
