package flatten

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the plans of TestGoldenPlans to testdata instead of comparing")

// golden are the plans kept as text in testdata/plans, one file per name. They
// show what the planner makes of a job; a change there is reviewed like code.
var golden = []struct {
	name    string
	keys    int
	dim     int
	entries []Entry
	outs    []View
}{
	{"two_keys_two_batches", 2, 0, tensors([]int64{2, 1}, []int64{3, 1}, []int64{1, 1}, []int64{1, 1}), nil},
	{"empty_entries_have_no_segment", 3, 0, tensors([]int64{0, 4}, []int64{2, 4}, []int64{0, 4}), nil},
	{"legacy_entry", 2, 1, tensors([]int64{0}, []int64{2, 4}), nil},
	{"last_dim", 2, 1, tensors([]int64{3, 2}, []int64{3, 5}), nil},
	{"middle_dim", 2, 1, tensors([]int64{2, 1, 4}, []int64{2, 3, 4}), nil},
	{"lone_entry_of_last_dim_is_one_run", 2, 1, tensors([]int64{3, 0}, []int64{3, 5}), nil},
	{"transposed", 2, 0, strided([]int64{2, 3}, []int64{4, 8}, []int64{1, 3}, nil), nil},
	{"every_other_column", 1, 0, strided([]int64{5, 3}, []int64{24, 8}), nil},
	{"every_other_row", 1, 0, strided([]int64{5, 2, 3}, []int64{48, 12, 4}), nil},
	{"expanded_row", 1, 0, strided([]int64{5, 3}, []int64{0, 4}), nil},
	{"expanded_scalar_joins_into_one_axis", 1, 0, strided([]int64{5, 3}, []int64{0, 0}), nil},
	{"reversed_rows", 1, 0, strided([]int64{5, 3}, []int64{-12, 4}), nil},
	{"odd_strides_of_single_dims", 1, 0, strided([]int64{2, 1, 3}, []int64{12, -7, 4}), nil},
	{"channels_last_to_contiguous", 1, 0, strided([]int64{2, 3, 4, 5}, []int64{240, 4, 60, 12}), nil},
	{
		"channels_last_to_channels_last_is_one_run", 2, 0,
		strided([]int64{2, 3, 4, 5}, []int64{240, 4, 60, 12}, []int64{1, 3, 4, 5}, []int64{240, 4, 60, 12}),
		[]View{{[]int64{3, 3, 4, 5}, []int64{240, 4, 60, 12}}},
	},
	{"reversed_to_reversed_is_one_run", 2, 0, strided([]int64{5}, []int64{-4}, []int64{2}, []int64{-4}), []View{{[]int64{7}, []int64{-4}}}},
	{"contiguous_to_reversed", 2, 0, tensors([]int64{2, 2}, []int64{1, 2}), []View{{[]int64{3, 2}, []int64{-8, 4}}}},
	{"output_with_gaps", 2, 0, tensors([]int64{2, 2}, []int64{1, 2}), []View{{[]int64{3, 2}, []int64{32, 4}}}},
	{"column_of_a_table", 2, 0, tensors([]int64{2}, []int64{3}), []View{{[]int64{5}, []int64{40}}}},
	{
		"six_axes_split_along_the_shortest", 1, 0,
		strided([]int64{4, 3, 5, 2, 4, 3}, []int64{8, 64, 512, 4096, 32768, 262144}), nil,
	},
	{"2_to_the_33_bytes", 2, 0, tensors([]int64{1 << 20, 1 << 10}, []int64{1 << 20, 1 << 10}), nil},
}

// strided makes float32 CPU entries of the given shapes and strides, in turns.
func strided(views ...[]int64) (entries []Entry) {
	for i := 0; i < len(views); i += 2 {
		entry := tensors(views[i])[0]
		entry.Strides = views[i+1]
		entries = append(entries, entry)
	}
	return entries
}

func TestGoldenPlans(t *testing.T) {
	for _, tt := range golden {
		t.Run(tt.name, func(t *testing.T) {
			l, err := NewLayout(nil, len(tt.entries)/tt.keys, tt.entries, tt.dim)
			if err != nil {
				t.Fatal(err)
			}
			p, err := NewPlan(l, tt.entries, tt.outs)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.verify(tt.entries, tt.outs); err != nil {
				t.Error(err)
			}
			compareFile(t, filepath.Join("testdata", "plans", tt.name+".txt"), p.String())
		})
	}
}

// compareFile compares text with a file's, or writes it there with -rewrite.
func compareFile(t *testing.T, path, got string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: run go test ./flatten -rewrite if this is meant\ngot\n%swant\n%s", path, got, want)
	}
}

func TestEveryGoldenFileHasAPlan(t *testing.T) {
	files, err := filepath.Glob("testdata/plans/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(files), len(golden); got != want {
		t.Errorf("got %d files, want %d", got, want)
	}
}
