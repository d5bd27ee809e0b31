// Command gen writes symbols.txt and the trampolines of package libcuda.
//
// symbols.txt is every cu* symbol that the compiled objects of gorgonia.org/cu and
// of goflat's own packages leave undefined; the assembly is derived from it alone.
// Run it with the CUDA headers on CPATH, as the build needs them anyway:
//
//	CPATH=.../nvidia/cuda_runtime/include go generate ./gpu/internal/libcuda
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// packages are those whose objects call the driver. Package libcuda itself does so
// only through dlsym.
var packages = []string{
	"gorgonia.org/cu",
	"github.com/goflat/goflat/gpu",
	"github.com/goflat/goflat/gpu/internal/cudatest",
}

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// run writes the files of package libcuda in dir.
func run(dir string) error {
	symbols, err := undefinedIn(packages)
	if err != nil {
		return err
	}
	for name, text := range files(symbols) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// files returns the generated files' texts by name.
func files(symbols []string) map[string]string {
	return map[string]string{
		"symbols.txt":         strings.Join(symbols, "\n") + "\n",
		"trampolines_amd64.S": assembly(symbols, amd64),
		"trampolines_arm64.S": assembly(symbols, arm64),
	}
}
