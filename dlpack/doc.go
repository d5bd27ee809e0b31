// Package dlpack borrows tensors of other libraries and lends memory to them, by the C
// structs of DLPack: what PyTorch, NumPy, CuPy and JAX pass around as capsules.
//
// [Import] turns a DLManagedTensorVersioned into what package flatten plans with, and
// [ExportBytes] and [Export] turn an output back into one:
//
//	t, err := dlpack.Import(managed)   // t.Entry: shape, strides, type and device
//	defer t.Close()                    // gives it back: calls the deleter
//	src, err := t.Bytes()              // its memory, as flatten.Plan.Execute takes it
//	...
//	managed, err = dlpack.ExportBytes(out, dst, dlpack.Options{})
//
// On a CUDA device t.Low is the address that gpu.Gather takes, and Export lends memory
// of any device by its address.
//
// # Who frees what
//
//   - An imported tensor is the importer's until Close, which calls the producer's deleter
//     once. Where Import returns an error the struct stays the caller's.
//   - An exported struct lies in memory of C. The consumer calls its deleter once, on any
//     thread, and only then are the struct freed, Go memory unpinned and Options.Release
//     called. Until then Go memory stays where it is. If nobody takes the struct,
//     Import it and Close that.
//   - A deleter enters Go. It must not be called in a child forked from the Go program,
//     and not after the process has begun to exit.
//   - No call here waits for a device. On CUDA, producer and consumer agree on a stream
//     beforehand, as Python's __dlpack__(stream=...) does.
//
// DLPack counts strides in elements, package flatten in bytes. A view that is contiguous
// has no strides in an [flatten.Entry] here.
package dlpack
