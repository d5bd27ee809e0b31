// Package cudatest has the driver calls that only tests make and that gorgonia.org/cu
// lacks or does not take a plain stream for: capture, graphs, times. Test files themselves cannot use cgo.
//
// A context must be current on the calling thread. Errors are the CUresult.
package cudatest

// #include <stdint.h>
// #include <cuda.h>
//
// static CUresult create(uintptr_t *stream)
// {
// 	CUstream s = NULL;
// 	CUresult code = cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
// 	*stream = (uintptr_t)s;
// 	return code;
// }
//
// static CUresult destroy(uintptr_t stream) { return cuStreamDestroy((CUstream)stream); }
//
// static CUresult synchronize(uintptr_t stream) { return cuStreamSynchronize((CUstream)stream); }
//
// static CUresult begin(uintptr_t stream)
// {
// 	return cuStreamBeginCapture((CUstream)stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
// }
//
// static CUresult end(uintptr_t stream, uintptr_t *exec)
// {
// 	CUgraph graph = NULL;
// 	CUgraphExec e = NULL;
// 	CUresult code = cuStreamEndCapture((CUstream)stream, &graph);
// 	if (code != CUDA_SUCCESS)
// 		return code;
// 	code = cuGraphInstantiateWithFlags(&e, graph, 0);
// 	cuGraphDestroy(graph);
// 	*exec = (uintptr_t)e;
// 	return code;
// }
//
// static CUresult launch(uintptr_t exec, uintptr_t stream)
// {
// 	return cuGraphLaunch((CUgraphExec)exec, (CUstream)stream);
// }
//
// static CUresult create_clock(uintptr_t events[2])
// {
// 	CUresult code = cuEventCreate((CUevent *)&events[0], CU_EVENT_DEFAULT);
// 	return code != CUDA_SUCCESS ? code : cuEventCreate((CUevent *)&events[1], CU_EVENT_DEFAULT);
// }
//
// static CUresult destroy_clock(uintptr_t events[2])
// {
// 	CUresult code = cuEventDestroy((CUevent)events[0]);
// 	return code != CUDA_SUCCESS ? code : cuEventDestroy((CUevent)events[1]);
// }
//
// static CUresult record(uintptr_t event, uintptr_t stream) { return cuEventRecord((CUevent)event, (CUstream)stream); }
//
// static CUresult elapsed(uintptr_t events[2], float *milliseconds)
// {
// 	CUresult code = cuEventSynchronize((CUevent)events[1]);
// 	return code != CUDA_SUCCESS ? code : cuEventElapsedTime(milliseconds, (CUevent)events[0], (CUevent)events[1]);
// }
//
// static CUresult fill(uintptr_t to, size_t bytes, uintptr_t stream)
// {
// 	return cuMemsetD32Async((CUdeviceptr)to, 0, bytes / 4, (CUstream)stream);
// }
//
// static CUresult copy(uintptr_t to, uintptr_t from, size_t bytes, uintptr_t stream)
// {
// 	return cuMemcpyDtoDAsync((CUdeviceptr)to, (CUdeviceptr)from, bytes, (CUstream)stream);
// }
//
// static CUresult destroy_exec(uintptr_t exec) { return cuGraphExecDestroy((CUgraphExec)exec); }
import "C"

import "fmt"

// Code is a CUresult that is not success.
type Code int

func (c Code) Error() string { return fmt.Sprintf("CUresult %d", int(c)) }

func check(code C.CUresult) error {
	if code == C.CUDA_SUCCESS {
		return nil
	}
	return Code(code)
}

// NewStream returns a stream that does not wait for the legacy default stream.
func NewStream() (stream uintptr, err error) {
	var s C.uintptr_t
	err = check(C.create(&s))
	return uintptr(s), err
}

// DestroyStream destroys a stream of NewStream.
func DestroyStream(stream uintptr) error { return check(C.destroy(C.uintptr_t(stream))) }

// Synchronize waits until a stream has done its work.
func Synchronize(stream uintptr) error { return check(C.synchronize(C.uintptr_t(stream))) }

// BeginCapture begins to capture a stream, in the strictest mode.
func BeginCapture(stream uintptr) error { return check(C.begin(C.uintptr_t(stream))) }

// A Graph is captured work that can be launched again and again.
type Graph struct{ exec C.uintptr_t }

// EndCapture ends the capture of a stream and returns its work.
func EndCapture(stream uintptr) (Graph, error) {
	var g Graph
	err := check(C.end(C.uintptr_t(stream), &g.exec))
	return g, err
}

// Launch enqueues the graph's work.
func (g Graph) Launch(stream uintptr) error { return check(C.launch(g.exec, C.uintptr_t(stream))) }

// Destroy destroys the graph.
func (g Graph) Destroy() error { return check(C.destroy_exec(g.exec)) }

// A Clock measures the time between two points of a stream.
type Clock struct{ events [2]C.uintptr_t }

// NewClock returns a clock.
func NewClock() (*Clock, error) {
	c := new(Clock)
	return c, check(C.create_clock(&c.events[0]))
}

// Start marks the first point.
func (c *Clock) Start(stream uintptr) error { return check(C.record(c.events[0], C.uintptr_t(stream))) }

// Stop marks the second point.
func (c *Clock) Stop(stream uintptr) error { return check(C.record(c.events[1], C.uintptr_t(stream))) }

// Microseconds waits for the second point and returns the time between them.
func (c *Clock) Microseconds() (float64, error) {
	var milliseconds C.float
	err := check(C.elapsed(&c.events[0], &milliseconds))
	return float64(milliseconds) * 1000, err
}

// Destroy destroys the clock.
func (c *Clock) Destroy() error { return check(C.destroy_clock(&c.events[0])) }

// Fill enqueues zeros.
func Fill(to uintptr, bytes int64, stream uintptr) error {
	return check(C.fill(C.uintptr_t(to), C.size_t(bytes), C.uintptr_t(stream)))
}

// Copy enqueues a copy on the device.
func Copy(to, from uintptr, bytes int64, stream uintptr) error {
	return check(C.copy(C.uintptr_t(to), C.uintptr_t(from), C.size_t(bytes), C.uintptr_t(stream)))
}
