package gpu_test

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// buildShared builds testdata/shared as a C shared library and returns its path and
// what the linker said.
func buildShared(t *testing.T) (library, log string) {
	t.Helper()
	library = filepath.Join(t.TempDir(), "libshared.so")
	return library, run(t, exec.Command("go", "build", "-buildmode=c-shared", "-ldflags=-v", "-o", library, "./testdata/shared"))
}

// run returns what a command printed and fails the test if the command fails.
func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// The library must load on a machine without a driver, and other users of CUDA in
// the process must not see our trampolines.
func TestSharedLibraryNeedsNoDriver(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a shared library")
	}
	library, log := buildShared(t)

	// Where a driver is installed, the linker must not find its libcuda.so before ours.
	// The flags come in the order in which the packages are imported.
	if ours, theirs := strings.Index(log, "internal/libcuda\""), strings.Index(log, "-L/usr/local/cuda"); ours < 0 || ours > theirs {
		t.Errorf("-L of package libcuda is at %d of the linker's flags, that of gorgonia.org/cu at %d", ours, theirs)
	}

	f, err := elf.Open(library)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	needed, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range needed {
		if strings.Contains(name, "cuda") {
			t.Errorf("NEEDED %s", name)
		}
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	driver, err := os.ReadFile("internal/libcuda/symbols.txt")
	if err != nil {
		t.Fatal(err)
	}
	functions := append(strings.Fields(string(driver)), "cuInit")
	for _, s := range symbols {
		if slices.Contains(functions, s.Name) {
			t.Errorf("dynamic symbol %s (section %v)", s.Name, s.Section)
		}
	}

	loader := filepath.Join(t.TempDir(), "load")
	run(t, exec.Command("gcc", "-o", loader, "testdata/load.c", "-ldl"))
	cmd := exec.Command(loader, library, "goflat_available")
	cmd.Env = append(os.Environ(), "LD_BIND_NOW=1")
	if out := run(t, cmd); !strings.HasPrefix(out, "driver loaded: 0\n") {
		t.Errorf("loading the library touched the driver: %s", out)
	}
}
