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
//   - Work goes on the caller's stream in the device's primary context, which is the
//     one PyTorch and CuPy use. The context that was current on the calling thread
//     is current again afterwards, in the error case too.
//   - For [Gather] and [Moves] nothing is allocated on the device, nothing is copied to
//     it, no call waits for the device: they may be captured into a CUDA graph, also as
//     the first call. [Permute], which moves units within their own memory, may need a
//     table there, which it keeps ([Held]).
//   - What a launch does is decided in Go (internal/launch) and only followed by the
//     kernels; [flatten.Apply] is the plain loop that both must equal.
//   - No call exits the process or logs. An error of the driver is an [Error].
//
// Building needs the CUDA 12 headers on CPATH (the wheel nvidia-cuda-runtime-cu12
// has them; gorgonia.org/cu does not compile against CUDA 13), running needs no
// toolkit. The build tag systemcuda is for programs that link libcuda themselves. The
// tests run on the driver of package fakecuda, or with GOFLAT_REQUIRE_GPU=1 on the
// installed one.
package gpu
