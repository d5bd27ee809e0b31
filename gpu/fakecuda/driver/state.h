// state.h: what the fake driver knows. One lock guards all of it; every driver call
// holds it from entry to return, so kernels run one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <cuda.h>

#include "fakecuda.h"
#include "kernels.h"

const unsigned fake_multiprocessors = 4; // of each device

// A device's primary context, or one of cuCtxCreate.
struct CUctx_st {
    int device = 0;
    int retains = 0; // of a primary one
    CUresult sticky = CUDA_SUCCESS; // a trap of a kernel, returned from then on
};

struct CUfunc_st {
    CUmod_st *module = nullptr;
    std::string name;
    size_t parameter_bytes = 0;
    unsigned threads = 0; // most of a block
    unsigned resident = 1; // blocks of so many threads that fit on a multiprocessor
    std::vector<Phase> phases;
};

struct CUmod_st {
    CUctx_st *context = nullptr;
    std::map<std::string, std::unique_ptr<CUfunc_st>> functions;
};

// One kernel launch, as recorded into a graph.
struct Work {
    CUfunc_st *function;
    unsigned blocks[3], threads[3];
    std::vector<unsigned char> params;
    bool cooperative; // the whole grid runs at once
};

struct CUgraph_st {
    std::vector<Work> work;
};

struct CUgraphExec_st {
    std::vector<Work> work;
};

struct CUstream_st {
    CUctx_st *context = nullptr;
    unsigned flags = 0;
    bool capturing = false, invalid = false;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    const void *capturer = nullptr; // identifies the thread that began
    CUgraph_st *graph = nullptr;
};

struct CUevent_st {
    CUctx_st *context = nullptr;
};

struct Allocation {
    size_t bytes;
    int device;
    unsigned char *raw; // what to free; guards around the bytes. nullptr: mapped, see vmm.cc
    size_t forbidden;   // so many of the first bytes are not for kernels
};

struct State {
    std::mutex lock;
    bool initialised = false;
    int driver_version = 12090;
    std::vector<CUctx_st> devices; // primary contexts
    std::set<CUcontext> contexts;  // all others
    std::map<uintptr_t, Allocation> memory; // by address
    std::map<uintptr_t, size_t> pinned;     // bytes of host memory, by address
    std::set<CUmodule> modules;
    std::set<CUstream> streams;
    std::set<CUevent> events;
    std::set<CUgraph> graphs;
    std::set<CUgraphExec> execs;

    struct Failure {
        std::string function;
        int nth; // counts down
        int code;
    };
    std::vector<Failure> failures;
    std::vector<std::string> log;

    State();
};

State &state();

// What belongs to a thread: its stack of contexts and its capture mode.
struct Thread {
    std::vector<CUcontext> stack;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

    CUcontext current() const { return stack.empty() ? nullptr : stack.back(); }
};

extern thread_local Thread this_thread;

// An Entry is one driver call: it takes the lock, logs the call, and has the code that
// a test asked for, if any.
class Entry {
  public:
    explicit Entry(const char *function, bool before_init = false);
    CUresult code() const { return code_; }

  private:
    std::lock_guard<std::mutex> held_;
    CUresult code_ = CUDA_SUCCESS;
};

// The first line of every driver function.
#define CALL(function)                                                                                                 \
    Entry entry(#function);                                                                                            \
    if (entry.code() != CUDA_SUCCESS)                                                                                  \
    return entry.code()

// unsafe refuses a call that a stream capture under way forbids, and ends the capture,
// as CUDA does unless the thread is in relaxed mode.
CUresult unsafe();

// context_of returns what a stream's work runs in; nullptr if the handle is bad or
// belongs to another context than the current one.
CUcontext context_of(CUstream stream);

// is_default: the null stream and CUDA's two reserved handles.
bool is_default(CUstream stream);

CUresult run_work(const Work &work);

// destroy_modules unloads what is loaded in a context.
void destroy_modules(CUcontext context);
