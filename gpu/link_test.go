package gpu_test

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A program with gorgonia.org/cu and this package links and runs in both ways of building,
// on machines with a driver and without.
func TestProgramWithBoth(t *testing.T) {
	if testing.Short() {
		t.Skip("builds programs")
	}
	without := append(os.Environ(), "LD_LIBRARY_PATH=")
	with := append(os.Environ(), "LD_LIBRARY_PATH="+driverFolder(t))
	works := []string{"after: ", "joined: goflat\n"}
	t.Run("lazy", func(t *testing.T) {
		program := buildBoth(t, nil)
		if slices.Contains(neededBy(t, program), "libcuda.so.1") {
			t.Error("the program needs libcuda.so.1")
		}
		closed := "before: 0 NotInitialized\n"
		if driverIsInstalled() {
			expect(t, program, without, append(works, closed)...)
		} else {
			expect(t, program, without, closed, "no driver: no usable CUDA device: libcuda.so.1 was not loaded")
		}
		expect(t, program, with, append(works, closed)...)
	})
	t.Run("systemcuda", func(t *testing.T) {
		program := buildBoth(t, []string{"CGO_LDFLAGS=-L" + stubs(t)}, "-tags=systemcuda")
		if !slices.Contains(neededBy(t, program), "libcuda.so.1") {
			t.Error("the program does not need libcuda.so.1")
		}
		expect(t, program, with, works...)
	})
}

// driverFolder is where the driver is that the tests run on; "" for the system's.
func driverFolder(t *testing.T) string {
	t.Helper()
	if !onFake {
		return ""
	}
	folder, err := filepath.Abs("fakecuda/build")
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// driverIsInstalled reports whether the loader finds a driver by itself.
func driverIsInstalled() bool {
	cache, err := exec.Command("/sbin/ldconfig", "-p").Output()
	return err == nil && strings.Contains(string(cache), "libcuda.so.1")
}

func buildBoth(t *testing.T, env []string, flags ...string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "both")
	cmd := exec.Command("go", append(append([]string{"build", "-o", program}, flags...), "./testdata/both")...)
	cmd.Env = append(os.Environ(), env...)
	run(t, cmd)
	return program
}

// expect runs the program and looks for texts in what it prints.
func expect(t *testing.T, program string, env []string, texts ...string) {
	t.Helper()
	cmd := exec.Command(program)
	cmd.Env = env
	out := run(t, cmd)
	for _, want := range texts {
		if !strings.Contains(out, want) {
			t.Errorf("got %q, want it to contain %q", out, want)
		}
	}
}

func neededBy(t *testing.T, program string) []string {
	t.Helper()
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	needed, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	return needed
}

// stubs makes a folder with a libcuda.so to link with, as the CUDA toolkit has one: all
// functions that gorgonia.org/cu and goflat call, and the soname of the driver. It is the
// same folder every time, because what Go has compiled for other linker flags is of no use.
func stubs(t *testing.T) (folder string) {
	t.Helper()
	names, err := os.ReadFile("internal/libcuda/symbols.txt")
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, name := range append(strings.Fields(string(names)), "cuInit") {
		fmt.Fprintf(&source, "int %s(void) { return 34; }\n", name) // CUDA_ERROR_STUB_LIBRARY
	}
	folder, err = filepath.Abs("fakecuda/build/stubs")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(folder, "stubs.c")
	if err := os.WriteFile(text, []byte(source.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, exec.Command("gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", filepath.Join(folder, "libcuda.so"), text))
	return folder
}
