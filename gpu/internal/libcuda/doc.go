// Package libcuda lets code that calls the CUDA driver API be linked, and
// loaded, on a machine that has no driver.
//
// gorgonia.org/cu links with -lcuda, calls cuInit when the process starts, and
// exits the process if that fails. Here each driver function that it or package
// gpu calls is a trampoline of our own with the same name, hidden in the shared
// object and jumping through one pointer ("slot"):
//
//	C.cuMemAlloc_v2 ──► jmp *slot[i] ──► before Open: returns CUDA_ERROR_NOT_INITIALIZED
//	                                     after Open:  libcuda.so.1's cuMemAlloc_v2
//	C.cuInit        ──► returns CUDA_SUCCESS and does nothing
//
// What holds:
//   - Linking adds no NEEDED entry for libcuda and leaves no cu* symbol undefined,
//     so loading works under LD_BIND_NOW=1 as well.
//   - Nothing before [Open] looks for the driver or touches it. A process that was
//     merely linked with CUDA code may fork.
//   - No trampoline is visible outside the shared object, so other users of CUDA in
//     the process (PyTorch, CuPy) keep their own libcuda.
//   - A function that the installed driver lacks returns CUDA_ERROR_NOT_FOUND.
//
// The file libcuda.a in this folder is an empty archive: -lcuda means "nothing more to
// link". The trampolines are generated from symbols.txt, which is
// read off the compiled packages, see gen. The idea is that of Implib.so and of
// PyTorch's LazyNVRTC; assembly is needed because a C forwarder would have to know
// each signature.
//
// With the build tag systemcuda none of this is compiled: the program links the
// real libcuda itself and lives with what gorgonia.org/cu does at start-up.
package libcuda

//go:generate go run ./gen
