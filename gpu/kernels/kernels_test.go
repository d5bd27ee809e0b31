package kernels

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What generate.py hashes: these flags, these headers, and the source.
var (
	flags   = []string{"--gpu-architecture=compute_70", "--std=c++17"}
	headers = []string{"common.cuh", "table.cuh"}
	cast    = "cast.cuh" // of cast_*.cu only
)

func fingerprint(t *testing.T, source string) string {
	t.Helper()
	var all strings.Builder
	for _, flag := range flags {
		all.WriteString(flag + "\x00")
	}
	names := slices.Clone(headers)
	if strings.HasPrefix(source, "cast_") {
		names = append(names, cast)
	}
	for _, name := range append(names, source) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString(name + "\x00" + string(text) + "\x00")
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(all.String())))
}

func TestPTXMatchesSources(t *testing.T) {
	sources, err := filepath.Glob("*.cu")
	if err != nil {
		t.Fatal(err)
	}
	if len(sources) == 0 {
		t.Fatal("no kernels found")
	}
	for _, source := range sources {
		ptx, err := os.ReadFile(strings.TrimSuffix(source, ".cu") + ".ptx")
		if err != nil {
			t.Error(err)
			continue
		}
		want := fmt.Sprintf("// %s sha256 %s;", source, fingerprint(t, source))
		if !strings.HasPrefix(string(ptx), want) {
			t.Errorf("%s changed since its PTX was generated: run python gpu/kernels/generate.py", source)
		}
	}
}

// The floor that the documentation promises: ISA 8.1 is what drivers for CUDA 12.1
// compile, sm_70 the oldest that takes 32,764 bytes of parameters.
func TestPTXTarget(t *testing.T) {
	all := map[string]string{"gather": Gather, "permute": Permute, "reference": Reference}
	for target, ptx := range Casts {
		all[fmt.Sprint("cast to ", target)] = ptx
	}
	for name, ptx := range all {
		for _, want := range []string{"\n.version 8.1\n", "\n.target sm_70\n"} {
			if !strings.Contains(ptx, want) {
				t.Errorf("%s has no line %q", name, strings.TrimSpace(want))
			}
		}
	}
}
