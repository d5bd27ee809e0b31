package main

func Example() {
	main()
	// Output:
	// features
	//   p2 image 0: [1 2 3 4]
	//   p2 image 1: [5 6]
	//   p3 image 0: [7 8]
	//   p3 image 1: [9 10 11 12]
	//   p4 image 0: []
	//   p4 image 1: [13 14]
	// flat
	//   image 0: [1 2 3 4 7 8]
	//   image 1: [5 6 9 10 11 12 13 14]
	// again [1 2 3 4 7 8]
	// goflat: shape: key "p3", batch 0: got 1 elements, want a multiple of 2
}
