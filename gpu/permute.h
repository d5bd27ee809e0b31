// permute.h: the driver calls of a warm permutation.
#ifndef GOFLAT_GPU_PERMUTE_H
#define GOFLAT_GPU_PERMUTE_H

#include "launch.h"

// goflat_is_capturing gives whether a stream is being captured.
goflat_answer goflat_is_capturing(uintptr_t stream);

// goflat_cooperate is goflat_launch for a grid whose blocks all run at once.
goflat_status goflat_cooperate(uintptr_t function, uint32_t blocks, uint32_t threads, uintptr_t stream, const void *parameter);

// goflat_zero_word and goflat_upload enqueue a word of zero, and a copy from pinned memory.
goflat_status goflat_zero_word(uintptr_t word, uintptr_t stream);
goflat_status goflat_upload(uintptr_t to, uintptr_t pinned, size_t bytes, uintptr_t stream);

// goflat_resident gives how many blocks of a kernel fit on a multiprocessor.
goflat_answer goflat_resident(uintptr_t function, uint32_t threads);

// Memory of the current context's device, and pinned memory of the host.
goflat_answer goflat_device_alloc(size_t bytes);
goflat_status goflat_device_free(uintptr_t memory);
goflat_answer goflat_pinned_alloc(size_t bytes);
goflat_status goflat_pinned_free(uintptr_t memory);

// Events. goflat_event_done gives 1 if the work before the event is done, else 0.
goflat_answer goflat_event_new(void);
goflat_status goflat_event_free(uintptr_t event);
goflat_status goflat_event_record(uintptr_t event, uintptr_t stream);
goflat_answer goflat_event_done(uintptr_t event);
goflat_status goflat_event_wait(uintptr_t event);
goflat_status goflat_stream_wait(uintptr_t stream, uintptr_t event);

// Streams that do not wait for the default stream, nor it for them.
goflat_answer goflat_stream_new(void);
goflat_status goflat_stream_free(uintptr_t stream);

#endif
