// Package cudatest has the driver calls that only tests make and that gorgonia.org/cu
// lacks: stream capture and graphs. Test files themselves cannot use cgo.
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
