package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const libcudaDir = ".."

func committed(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(libcudaDir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A symbol without a trampoline would be undefined in the shared object, whose
// import then fails. Headers of another 12.x may call other versions of a function,
// so the committed list may be longer than this build needs.
func TestEveryDriverSymbolHasATrampoline(t *testing.T) {
	needed, err := undefinedIn(packages)
	if err != nil {
		t.Fatal(err)
	}
	if len(needed) < 100 {
		t.Fatalf("found only %d driver symbols, want those of gorgonia.org/cu", len(needed))
	}
	have := strings.Fields(committed(t, "symbols.txt"))
	lacking := slices.DeleteFunc(needed, func(name string) bool { return slices.Contains(have, name) })
	if len(lacking) > 0 {
		t.Errorf("no trampoline for %v: run go generate ./gpu/internal/libcuda", lacking)
	}
}

func TestFilesMatchSymbols(t *testing.T) {
	symbols := strings.Fields(committed(t, "symbols.txt"))
	for name, want := range files(symbols) {
		if got := committed(t, name); got != want {
			t.Errorf("%s is not what symbols.txt gives: run go generate ./gpu/internal/libcuda", name)
		}
	}
}
