// Slices turns a dictionary of lists into one slice per batch.
//
//	go run ./examples/go/slices
package main

import (
	"fmt"
	"log"

	"github.com/goflat/goflat/flatten"
)

// A model found regions on two levels of two images. A region has a feature of
// two numbers; images have as many regions as they like, also none.
const featureElems = 2

var (
	levels   = []string{"p2", "p3", "p4"}
	features = [][][]float32{
		{{1, 2, 3, 4}, {5, 6}},    // p2: two regions in image 0, one in image 1
		{{7, 8}, {9, 10, 11, 12}}, // p3: one and two
		{{}, {13, 14}},            // p4: none and one
	}
)

func main() {
	fmt.Println("features")
	for k, level := range levels {
		for b, rows := range features[k] {
			fmt.Printf("  %s image %d: %v\n", level, b, rows)
		}
	}

	flat, err := flatten.Slices(levels, features, featureElems)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("flat")
	for b, rows := range flat {
		fmt.Printf("  image %d: %v\n", b, rows)
	}

	// The same into memory that is there already, as in a loop over many images.
	again := [][]float32{make([]float32, 6), make([]float32, 8)}
	if err := flatten.SlicesInto(again, levels, features, featureElems); err != nil {
		log.Fatal(err)
	}
	fmt.Println("again", again[0])

	// Lists that do not fit together are an error that says where.
	features[1][0] = features[1][0][:1]
	_, err = flatten.Slices(levels, features, featureElems)
	fmt.Println(err)
}
