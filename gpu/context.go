package gpu

// #include "permute.h"
import "C"

// check turns the answer of a function of launch.c into an error.
func check(s C.goflat_status) error {
	if s.code == C.CUDA_SUCCESS {
		return nil
	}
	return result(C.GoString(s.call), s.code)
}

// value is check for a function that gives a number.
func value(a C.goflat_answer) (uintptr, error) {
	return uintptr(a.value), check(a.status)
}

// A scope is a context made current for a while. The goroutine must stay on its
// thread, which is what has a current context, until the scope has ended.
type scope struct{ c C.goflat_scope }

// enter makes a context current.
func enter(context uintptr) (scope, error) {
	s := scope{C.goflat_enter(C.uintptr_t(context))}
	return s, check(s.c.status)
}

// leave makes the context current that was so before and returns err, or if that is
// nil its own failure.
func (s scope) leave(err error) error {
	if failed := check(C.goflat_leave(s.c)); err == nil {
		return failed
	}
	return err
}

// relaxed calls f in a mode in which the thread may load modules and create contexts
// although a stream is being captured: what f does is no part of the graph.
func relaxed(f func() error) error {
	mode, err := value(C.goflat_relax())
	if err != nil {
		return err
	}
	err = f()
	if failed := check(C.goflat_unrelax(C.uintptr_t(mode))); err == nil {
		return failed
	}
	return err
}
