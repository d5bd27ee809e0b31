package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"gorgonia.org/tensor"

	"github.com/goflat/goflat/gpu/fakecuda"
)

// The fake driver of the repository, or the installed one if GOFLAT_REQUIRE_GPU=1.
func TestMain(m *testing.M) {
	if os.Getenv("GOFLAT_REQUIRE_GPU") != "1" {
		folder := filepath.Join("..", "..", "..", "gpu", "fakecuda")
		if out, err := exec.Command("make", "-s", "-C", folder).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the fake driver: %v\n%s", err, out)
			os.Exit(1)
		}
		path, err := filepath.Abs(filepath.Join(folder, "build", "libcuda.so.1"))
		if err == nil {
			err = fakecuda.Load(path)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func Example() {
	main()
	// Output:
	// batch 0 on the CPU: shape (3, 2), [1 2 3 4 7 8]
	// batch 1 on the CPU: shape (3, 2), [5 6 9 10 11 12]
	// batch 0 on a GPU: shape (3, 2), [1 2 3 4 7 8]
	// batch 1 on a GPU: shape (3, 2), [5 6 9 10 11 12]
}

// Views have strides, and begin within the memory of another tensor.
func TestFlattenViews(t *testing.T) {
	whole := tensor.New(tensor.WithShape(3, 4), tensor.WithBacking(tensor.Range(tensor.Int32, 0, 12)))
	view, err := whole.Slice(tensor.S(1, 3), tensor.S(1, 3))
	if err != nil {
		t.Fatal(err)
	}
	columns := tensor.New(tensor.WithShape(2, 2), tensor.WithBacking([]int32{100, 101, 102, 103}))
	if err := columns.T(); err != nil {
		t.Fatal(err)
	}
	flat, err := Flatten([][]*tensor.Dense{{view.(*tensor.Dense)}, {columns}})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := flat[0].Data().([]int32), []int32{5, 6, 9, 10, 100, 102, 101, 103}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestFlattenRefuses(t *testing.T) {
	words := tensor.New(tensor.WithShape(1, 2), tensor.WithBacking([]string{"a", "b"}))
	for name, features := range map[string][][]*tensor.Dense{
		"nothing":       nil,
		"words":         {{words}},
		"another shape": {{dense(1, 1, 2)}, {tensor.New(tensor.WithShape(1, 1), tensor.WithBacking([]float32{1}))}},
		"another type":  {{dense(1, 1, 2)}, {tensor.New(tensor.WithShape(1, 2), tensor.WithBacking([]int32{1, 2}))}},
	} {
		if flat, err := Flatten(features); err == nil {
			t.Errorf("%s: got %v, want an error", name, flat)
		}
	}
}
