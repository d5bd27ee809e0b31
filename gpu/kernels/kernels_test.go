package kernels

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goflat/goflat/flatten"
)

// What generate.py hashes: these flags, these headers, and the source.
var (
	flags   = []string{"--gpu-architecture=compute_70", "--std=c++17"}
	headers = []string{"common.cuh", "table.cuh"}
	more    = map[string][]string{"gather.cu": {"copy.cuh", "strided.cuh"}} // where they have other names than their source
)

// A unit is what one PTX file is made of.
type unit struct {
	ptx, source    string
	flags, headers []string
}

// units are those of generate.py.
func units(t *testing.T) (all []unit) {
	t.Helper()
	sources, err := filepath.Glob("*.cu")
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range sources {
		if source != "cast.cu" {
			all = append(all, unit{strings.TrimSuffix(source, ".cu") + ".ptx", source, flags, withOwn(source)})
			continue
		}
		for from := range flatten.NumFloats {
			for to := range flatten.NumFloats {
				macros := []string{"--define-macro=SOURCE=" + from.Short(), "--define-macro=TARGET=" + to.Short()}
				all = append(all, unit{
					castFile(from, to), source, slices.Concat(flags, macros), slices.Concat(headers, []string{"floats.cuh", "cast.cuh"}),
				})
			}
		}
	}
	return all
}

// withOwn is the headers of a source: those of all, and its own or one of its name if there is one.
func withOwn(source string) []string {
	if names := more[source]; names != nil {
		return slices.Concat(headers, names)
	}
	own := source + "h"
	if _, err := os.Stat(own); err != nil {
		return headers
	}
	return append(slices.Clone(headers), own)
}

func (u *unit) fingerprint(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, flag := range u.flags {
		all.WriteString(flag + "\x00")
	}
	for _, name := range append(slices.Clone(u.headers), u.source) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString(name + "\x00" + string(text) + "\x00")
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(all.String())))
}

func TestPTXMatchesSources(t *testing.T) {
	all := units(t)
	if len(all) < int(flatten.NumFloats*flatten.NumFloats) {
		t.Fatal("kernels are missing")
	}
	for _, u := range all {
		ptx, err := os.ReadFile(u.ptx)
		if err != nil {
			t.Error(err)
			continue
		}
		want := fmt.Sprintf("// %s sha256 %s;", u.source, u.fingerprint(t))
		if !strings.HasPrefix(string(ptx), want) {
			t.Errorf("%s is not of today's sources: run python gpu/kernels/generate.py", u.ptx)
		}
	}
}

// The floor that the documentation promises: ISA 8.1 is what drivers for CUDA 12.1
// compile, sm_70 the oldest that takes 32,764 bytes of parameters.
func TestPTXTarget(t *testing.T) {
	all := map[string]string{"gather": Gather, "permute": Permute, "reference": Reference}
	for from := range flatten.NumFloats {
		for to := range flatten.NumFloats {
			all[castFile(from, to)] = Cast(from, to)
		}
	}
	for name, ptx := range all {
		for _, want := range []string{"\n.version 8.1\n", "\n.target sm_70\n"} {
			if !strings.Contains(ptx, want) {
				t.Errorf("%s.ptx has no line %q", name, strings.TrimSpace(want))
			}
		}
	}
}
