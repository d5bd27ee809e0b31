package main

func Example() {
	main()
	// Output:
	// output 0: shape [3 2], 24 bytes, keys begin at rows [0 2 3]
	// output 1: shape [3 2], 24 bytes, keys begin at rows [0 3 3]
	// 2 keys x 2 batches of float32, rows of (2,) along dim 0
	// entry 0 -> batch 0: src 0, dst 0, 16 bytes
	// entry 2 -> batch 0: src 0, dst 16, 8 bytes
	// entry 1 -> batch 1: src 0, dst 0, 4 bytes, 3 x (src +4, dst +8), 2 x (src +12, dst +4)
	// output 0: [1 2 3 4 11 12]
	// output 1: [5 6 7 8 9 10]
	// true goflat: overlap: batch 1: got strides (0, 4) for shape (3, 2), want elements that share no byte
	// true goflat: shape: key "p3", batch 0: got (1, 5), want (*, 2)
}
