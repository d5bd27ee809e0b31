// Package fakecuda is a CUDA driver for tests, and how Go tests talk to it.
//
// The driver is a real libcuda.so.1, written in C++, so what is tested is the shipped
// path: the lazy binding, gorgonia.org/cu, the launch code, and the committed kernel
// sources, which are compiled for the host and run thread by thread.
//
//	make -C gpu/fakecuda                          # build/libcuda.so.1
//	LD_LIBRARY_PATH=gpu/fakecuda/build python ... # any process can use it
//
// It has two devices whose memory is host memory between guard bytes. Each access of
// a kernel is checked: bytes outside live memory of the kernel's own device, or a
// misaligned address, trap as on the hardware. Calls that CUDA forbids during a stream
// capture are refused. Any call can be made to fail. Work runs when it is enqueued, so
// it finds no missing wait.
//
// Functions beyond the driver API are declared in driver/fakecuda.h; this package wraps them.
package fakecuda
