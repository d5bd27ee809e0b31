// Package gpu runs flatten plans on CUDA devices.
//
// Most users need two functions: [Available], which says whether there is a device
// and if not what to do, and [Gather], which moves the bytes of a plan with one
// launch for all batches of a device:
//
//	plan (flatten)                     tables (internal/launch)   device
//	segment  src ─► dst  bytes         equal bytes, in one        one block a tile,
//	"0"[0]    0 ─►  0    100    ──►    flat grid, found from ──►  16-byte loads and
//	"1"[0]    0 ─► 100    60           prefix sums that travel    stores, any alignment
//	...                                as kernel parameters       on either side
//
// What holds:
//   - Importing the package does not touch CUDA, see package libcuda. The driver is
//     opened by the first call that needs it.
//   - Work goes on the caller's stream, in the device's primary context, which is the
//     one PyTorch and CuPy use, or in one of the caller's ([NewContext]). The context that
//     was current on the calling thread is current again afterwards, in the error case too.
//   - For [Gather] and [Moves] nothing is allocated on the device, nothing is copied to
//     it, no call waits for the device: they may be captured into a CUDA graph, also as
//     the first call. [Permute], which moves units within their own memory, may need a
//     table there, which it keeps ([Held]).
//   - What a launch does is decided in Go (internal/launch) and only followed by the
//     kernels; [flatten.Apply] is the plain loop that both must equal.
//   - No call exits the process or logs. An error of the driver is an [Error].
//
// # With gorgonia.org/cu
//
// A program that has contexts, streams and memory of gorgonia.org/cu hands them in:
//
//	context, err := device.MakeContext(cu.SchedAuto)
//	goflat, err := gpu.NewContext(context) // once
//	err = goflat.Gather(stream, plan, dst, src) // a cu.Stream and slices of cu.DevicePtr
//
// gorgonia.org/cu links libcuda and initialises it when the program starts; without a
// driver the program ends there. In a program that imports this package both are put
// off: it starts everywhere, and functions of package cu return [cu.NotInitialized] until
// [Available] has been called. With the build tag systemcuda the program links libcuda
// itself and starts as gorgonia.org/cu alone would; so build programs whose own C code
// calls the driver. Where the machine that builds has a libcuda.so, import this package
// before gorgonia.org/cu, or set CGO_LDFLAGS=-Wl,--as-needed, so that the program does not
// come to need it for nothing.
//
// # Building
//
// Building needs the CUDA 12 headers on CPATH (the wheel nvidia-cuda-runtime-cu12
// has them; gorgonia.org/cu does not compile against CUDA 13), running needs no
// toolkit. The tests run on the driver of package fakecuda, or with GOFLAT_REQUIRE_GPU=1
// on the installed one.
package gpu
