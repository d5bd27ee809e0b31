package bridge

// #include "job.h"
import "C"

import "runtime"

// Flatten runs one call. features, outs and result are the addresses of Python objects that the caller keeps alive:
// the containers, a list of outputs to fill (0: make new ones), and a list that receives the outputs and, unless it is
// a plain list, the attribute _layout. dim and flags (GF_FLAG_ in job.h) say what is wanted.
//
// It returns a status: 0 done, 1 an entry requires grad, 2 only the framework does this right, 3 containers to be
// normalised first, 5 done but for telling autograd. Only for 0 and 5 the result was touched.
func Flatten(features, outs, result, dim, flags int64) (status int64, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer recovered(&err)
	j, err := open(features, result, dim, flags, 0)
	if err != nil {
		return 0, wire(err)
	}
	defer j.abandon()
	s, err := j.run(outs, dim)
	return int64(s), wire(err)
}

// Register stores the Python callables and types of the dict at the given address and returns how many it knew.
func Register(hooks int64) int64 {
	return int64(C.gf_register(C.uint64_t(hooks)))
}

// LearnTorch finds the short cuts into the torch that is loaded. probes is the address of a list of tuples of tensor,
// address of its TensorImpl, key set, and whether it has autograd state; plain that of a list of ordinary tensors.
// It returns 0 if every tensor has to be read through Python attributes, 1 if plain tensors can be told by two words,
// 2 if torch's stable C functions can read them, 3 if those can make outputs too.
func LearnTorch(probes, plain int64) int64 {
	return int64(C.gf_learn_torch(C.uint64_t(probes), C.uint64_t(plain)))
}

// LearnImpl finds the words by which plain tensors like the first of their job are read; LearnTorch comes before. probes is
// the address of a list of tuples of tensor on the CPU, address of its StorageImpl, storage offset, bytes of an element;
// elsewhere that of a list of tensors on another device. It returns 1 if all were found.
func LearnImpl(probes, elsewhere int64) int64 {
	return int64(C.gf_learn_impl_words(C.uint64_t(probes), C.uint64_t(elsewhere)))
}

// TakeException appends the exception that this thread's last PYTHON error stands for to the list at the given
// address. It returns 1 if there was one.
func TakeException(list int64) int64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return int64(C.gf_take_exception(C.uint64_t(list)))
}

// Live is the number of jobs that have been opened and not closed; 0 between calls.
func Live() int64 { return int64(C.gf_live()) }
