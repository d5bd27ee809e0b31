// cudart.c: as much of the CUDA runtime as torch's caching allocator and its copies need, over the fake driver, so
// that torch.cuda makes real tensors in the memory of the fake devices. To be preloaded (LD_PRELOAD) before torch.
//
// Streams and events are accepted and only noted down, since the fake driver runs work when it is enqueued. There are no
// kernels but goflat's: tensors are made by torch.empty and filled by copies. Allocations count against a capacity
// together with what the driver has mapped, so that torch runs out of memory as on a device.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define UNUSED __attribute__((unused))

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, NO_DEVICE = 100, NOT_READY = 600, MOST = 4096, VERSION = 13020, PHYSICAL = 1 };

static int (*retain)(void **, int), (*set_current)(void *), (*mem_alloc)(uint64_t *, size_t), (*mem_free)(uint64_t);
static int (*new_stream)(void **, unsigned);
static long long (*mapped)(int);
static void *contexts[16];
static int devices;
static __thread int current, last_error;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  uint64_t at;
  size_t bytes;
  int device;
} allocations[MOST];
static size_t capacity = (size_t)4 << 30;
static int busy;

// What streams were told, in order: to wait for what was recorded on another (WAIT), or to record (RECORD).
enum { WAIT, RECORD };
static struct {
  int kind, device;  // the one that was current
  void *stream, *other;
} told[MOST];
static int told_len;

// What tests set and read.
int fakecudart_allocations;  // calls of cudaMalloc

void fakecudart_capacity(size_t bytes) { capacity = bytes; }

void fakecudart_forget(void) { told_len = 0; }

// Fills in (kind, device, stream, other) of what streams were told; 0 where there is no such.
int fakecudart_told(int i, uint64_t *fields) {
  if (i >= told_len) return 0;
  fields[0] = told[i].kind, fields[1] = told[i].device;
  fields[2] = (uint64_t)told[i].stream, fields[3] = (uint64_t)told[i].other;
  return 1;
}

void fakecudart_busy(int on) { busy = on; }  // whether events seem not to have happened yet

static void open_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return;
  int (*init)(unsigned), (*count)(int *);
  *(void **)&init = dlsym(library, "cuInit");
  *(void **)&count = dlsym(library, "cuDeviceGetCount");
  *(void **)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
  *(void **)&set_current = dlsym(library, "cuCtxSetCurrent");
  *(void **)&mem_alloc = dlsym(library, "cuMemAlloc_v2");
  *(void **)&mem_free = dlsym(library, "cuMemFree_v2");
  *(void **)&new_stream = dlsym(library, "cuStreamCreate");
  *(void **)&mapped = dlsym(library, "fakecuda_vmm");
  if (mapped && init(0) == SUCCESS) count(&devices);
}

// use makes the primary context of the thread's device current, as most calls of the runtime do.
static void use(void) {
  pthread_once(&once, open_driver);
  if (current >= devices) return;
  pthread_mutex_lock(&lock);
  if (!contexts[current]) retain(&contexts[current], current);
  pthread_mutex_unlock(&lock);
  set_current(contexts[current]);
}

static int answer(int code) {
  if (code) last_error = code;
  return code;
}

// ---- devices ----

int cudaGetDeviceCount(int *count) {
  pthread_once(&once, open_driver);
  *count = devices;
  return answer(devices ? SUCCESS : NO_DEVICE);
}

int cudaGetDevice(int *device) {
  *device = current;
  return SUCCESS;
}

int cudaSetDevice(int device) {
  current = device;
  use();
  return SUCCESS;
}

// The fields that torch reads, where both CUDA 12 and 13 have them.
int cudaGetDeviceProperties(char *p, UNUSED int device) {
  memset(p, 0, 720);
  strcpy(p, "Fake CUDA device");
  *(size_t *)(p + 288) = capacity;  // totalGlobalMem
  *(int *)(p + 308) = 32;           // warpSize
  *(int *)(p + 320) = 1024;         // maxThreadsPerBlock
  *(int *)(p + 360) = 9;            // major
  *(int *)(p + 384) = *(int *)(p + 388) = 4;  // multiProcessorCount in 13 and in 12
  return SUCCESS;
}

int cudaGetDeviceProperties_v2(char *p, int device) { return cudaGetDeviceProperties(p, device); }

int cudaDriverGetVersion(int *v) { return *v = VERSION, SUCCESS; }

int cudaRuntimeGetVersion(int *v) { return *v = VERSION, SUCCESS; }

int cudaDeviceGetAttribute(int *value, UNUSED int attribute, UNUSED int device) { return *value = 0, SUCCESS; }

int cudaDeviceCanAccessPeer(int *can, UNUSED int device, UNUSED int peer) { return *can = 0, SUCCESS; }

int cudaDeviceGetStreamPriorityRange(int *least, int *most) { return *least = *most = 0, SUCCESS; }

int cudaDeviceSynchronize(void) { return SUCCESS; }

int cudaThreadExchangeStreamCaptureMode(UNUSED int *mode) { return SUCCESS; }

// Functions of the driver that the fake one lacks fail where they are called.
static int lacking(void) { return 500; }

int cudaGetDriverEntryPointByVersion(const char *name, void **function, UNUSED unsigned version,
                                     UNUSED unsigned long long flags, int *found) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  *function = library ? dlsym(library, name) : NULL;
  if (!*function) *function = (void *)lacking;
  if (found) *found = 0;
  return SUCCESS;
}

int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *found) {
  return cudaGetDriverEntryPointByVersion(name, function, VERSION, flags, found);
}

// ---- memory ----

static size_t in_use(void) {
  size_t bytes = mapped(PHYSICAL);
  for (int i = 0; i < MOST; i++)
    if (allocations[i].at) bytes += allocations[i].bytes;
  return bytes;
}

int cudaMalloc(void **p, size_t bytes) {
  use();
  uint64_t at = 0;
  int slot = 0;
  pthread_mutex_lock(&lock);
  fakecudart_allocations++;
  while (slot < MOST - 1 && allocations[slot].at) slot++;
  int code = in_use() + bytes <= capacity ? mem_alloc(&at, bytes) : OUT_OF_MEMORY;
  if (code == SUCCESS) {
    allocations[slot].at = at;
    allocations[slot].bytes = bytes;
    allocations[slot].device = current;
  }
  pthread_mutex_unlock(&lock);
  *p = (void *)at;
  return answer(code);
}

int cudaFree(void *p) {
  if (!p) return SUCCESS;
  use();
  pthread_mutex_lock(&lock);
  for (int i = 0; i < MOST; i++)
    if (allocations[i].at == (uint64_t)p) allocations[i].at = 0;
  pthread_mutex_unlock(&lock);
  return answer(mem_free((uint64_t)p));
}

int cudaMemGetInfo(size_t *available, size_t *total) {
  use();
  pthread_mutex_lock(&lock);
  *available = capacity - in_use();
  *total = capacity;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

int cudaPointerGetAttributes(void *attributes, UNUSED const void *p) {
  memset(attributes, 0, 24);  // not known to CUDA: host memory
  return SUCCESS;
}

int cudaMemcpy(void *dst, const void *src, size_t bytes, UNUSED int kind) {
  memcpy(dst, src, bytes);
  return SUCCESS;
}

int cudaMemcpyAsync(void *dst, const void *src, size_t bytes, int kind, UNUSED void *stream) {
  return cudaMemcpy(dst, src, bytes, kind);
}

int cudaMemsetAsync(void *dst, int value, size_t bytes, UNUSED void *stream) {
  memset(dst, value, bytes);
  return SUCCESS;
}

// ---- streams and events ----

int cudaStreamCreateWithPriority(void **stream, unsigned flags, UNUSED int priority) {
  use();
  return answer(new_stream(stream, flags));
}

int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }

int cudaStreamGetPriority(UNUSED void *stream, int *priority) { return *priority = 0, SUCCESS; }

int cudaStreamIsCapturing(UNUSED void *stream, int *status) { return *status = 0, SUCCESS; }

int cudaStreamGetCaptureInfo(UNUSED void *stream, int *status) { return *status = 0, SUCCESS; }

int cudaStreamGetCaptureInfo_v2(UNUSED void *stream, int *status) { return *status = 0, SUCCESS; }

int cudaStreamQuery(UNUSED void *stream) { return SUCCESS; }

int cudaStreamSynchronize(UNUSED void *stream) { return SUCCESS; }

static void tell(int kind, void *stream, void *other) {
  pthread_mutex_lock(&lock);
  if (told_len < MOST) {
    told[told_len].kind = kind, told[told_len].device = current;
    told[told_len].stream = stream, told[told_len].other = other;
    told_len++;
  }
  pthread_mutex_unlock(&lock);
}

// An event is where it keeps the stream that it was last recorded on.
int cudaStreamWaitEvent(void *stream, void *event, UNUSED unsigned flags) {
  tell(WAIT, stream, *(void **)event);
  return SUCCESS;
}

int cudaEventCreateWithFlags(void **event, UNUSED unsigned flags) {
  *event = calloc(1, sizeof(void *));
  return SUCCESS;
}

int cudaEventDestroy(void *event) {
  free(event);
  return SUCCESS;
}

int cudaEventRecord(void *event, void *stream) {
  tell(RECORD, stream, NULL);
  *(void **)event = stream;
  return SUCCESS;
}

int cudaEventRecordWithFlags(void *event, void *stream, UNUSED unsigned flags) { return cudaEventRecord(event, stream); }

int cudaEventSynchronize(UNUSED void *event) { return SUCCESS; }

int cudaEventQuery(UNUSED void *event) { return busy ? NOT_READY : SUCCESS; }

// ---- errors ----

int cudaGetLastError(void) {
  int code = last_error;
  last_error = SUCCESS;
  return code;
}

int cudaPeekAtLastError(void) { return last_error; }

const char *cudaGetErrorName(int code) { return code == OUT_OF_MEMORY ? "cudaErrorMemoryAllocation" : "cudaError"; }

const char *cudaGetErrorString(int code) { return code == OUT_OF_MEMORY ? "out of memory" : "an error"; }
