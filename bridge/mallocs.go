package bridge

import "runtime"

// Mallocs is the number of objects that Go has put on its heap so far, in the whole process. It stops all Go code
// for a moment: for tests and benchmarks.
func Mallocs() int64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.Mallocs)
}
