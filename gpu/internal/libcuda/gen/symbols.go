package main

import (
	"bufio"
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// undefinedIn compiles the packages and returns the sorted cu* symbols that their
// C objects leave undefined. cuInit is left out: package libcuda defines it.
func undefinedIn(packages []string) ([]string, error) {
	dir, err := os.MkdirTemp("", "goflat-gen")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	seen := objects{defined: map[string]bool{"cuInit": true}, undefined: map[string]bool{}}
	for i, pkg := range packages {
		archive := filepath.Join(dir, strconv.Itoa(i)+".a")
		if out, err := exec.Command("go", "build", "-o", archive, pkg).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
		if err := seen.add(archive); err != nil {
			return nil, fmt.Errorf("read the objects of %s: %w", pkg, err)
		}
	}
	return seen.missing(), nil
}

// objects is the cu* symbols of all objects read so far. gorgonia.org/cu defines
// some of that form itself.
type objects struct{ defined, undefined map[string]bool }

func (o objects) missing() []string {
	var names []string
	for name := range o.undefined {
		if !o.defined[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// add reads every ELF member of an archive.
func (o objects) add(archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	return eachMember(f, func(member []byte) error {
		if !bytes.HasPrefix(member, []byte(elf.ELFMAG)) {
			return nil // the Go compiler's own object
		}
		object, err := elf.NewFile(bytes.NewReader(member))
		if err != nil {
			return err
		}
		symbols, err := object.Symbols()
		if err != nil {
			return err
		}
		for _, s := range symbols {
			switch {
			case !isDriver(s.Name):
			case s.Section == elf.SHN_UNDEF:
				o.undefined[s.Name] = true
			default:
				o.defined[s.Name] = true
			}
		}
		return nil
	})
}

// isDriver reports whether a symbol is named like the driver API's functions.
func isDriver(name string) bool {
	return len(name) > 2 && strings.HasPrefix(name, "cu") && name[2] >= 'A' && name[2] <= 'Z'
}

// eachMember calls f with each file in a Unix archive (ar(5)): a magic line, then
// for each member a 60-byte header whose bytes 48..58 are the decimal size, and the
// bytes, padded to an even number.
func eachMember(r io.Reader, f func([]byte) error) error {
	b := bufio.NewReader(r)
	magic, err := b.ReadString('\n')
	if err != nil {
		return fmt.Errorf("archive without a first line: %w", err)
	}
	if magic != "!<arch>\n" {
		return fmt.Errorf("not an archive: %q", magic)
	}
	for {
		var header [60]byte
		if _, err := io.ReadFull(b, header[:]); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		size, err := strconv.Atoi(strings.TrimSpace(string(header[48:58])))
		if err != nil {
			return err
		}
		member := make([]byte, size+size%2)
		if _, err := io.ReadFull(b, member); err != nil {
			return err
		}
		if err := f(member[:size]); err != nil {
			return err
		}
	}
}
