package fakecuda

// #include <dlfcn.h>
// #include "driver/fakecuda.h"
//
// static void *find(const char *name)
// {
// 	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
// 	return dlsym(library, name);
// }
//
// static long long call_vmm(int kind) { return ((long long (*)(int))find("fakecuda_vmm"))(kind); }
//
// static void call_limit(size_t bytes) { ((void (*)(size_t))find("fakecuda_limit"))(bytes); }
import "C"

// Mapped is what there is of address ranges: how many are reserved, and bytes of memory
// and of mappings.
type Mapped struct {
	Reservations, Physical, Bytes int
}

// Mappings counts reserved addresses and what is mapped to them.
func Mappings() Mapped {
	count := func(kind C.int) int { return int(C.call_vmm(kind)) }
	return Mapped{
		Reservations: count(C.FAKECUDA_RESERVATIONS),
		Physical:     count(C.FAKECUDA_PHYSICAL),
		Bytes:        count(C.FAKECUDA_MAPPED),
	}
}

// Limit lets memory for mappings run out at so many bytes; 0 takes the limit away.
func Limit(bytes int) { C.call_limit(C.size_t(bytes)) }
