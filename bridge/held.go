package bridge

import "github.com/goflat/goflat/gpu"

// Held is the memory in bytes that goflat itself holds on a CUDA device between calls, and that no allocator of a
// framework counts. It starts no driver: a device that goflat has not used holds 0, and so does one that is not there.
//
// This is the one place that sums it up: whatever comes to keep device memory adds its figure here.
func Held(device int64) int64 {
	tables := gpu.Held(int(device))
	ranges := gpu.CollectMemory(int(device)) // of collect(): mapped ahead, kept for the next context, or under claims only
	return tables + ranges.Mapped - ranges.Segments
}
