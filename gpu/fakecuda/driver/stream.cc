// stream.cc: streams, events, captures and graphs. Work runs when it is enqueued, so there is
// never anything to wait for.
#include "state.h"

bool is_default(CUstream stream)
{
    return uintptr_t(stream) <= 2;
}

CUcontext context_of(CUstream stream)
{
    CUcontext current = this_thread.current();
    if (is_default(stream))
        return current;
    return state().streams.count(stream) && stream->context == current ? current : nullptr;
}

extern "C" {

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    CALL(cuStreamCreate);
    if (!this_thread.current())
        return CUDA_ERROR_INVALID_CONTEXT;
    *stream = new CUstream_st;
    (*stream)->context = this_thread.current();
    (*stream)->flags = flags;
    state().streams.insert(*stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream)
{
    CALL(cuStreamDestroy);
    if (!state().streams.erase(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    delete stream;
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    CALL(cuStreamSynchronize);
    CUcontext context = context_of(stream);
    if (!context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (CUresult code = unsafe())
        return code;
    if (!is_default(stream) && stream->capturing) {
        stream->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return context->sticky;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CALL(cuThreadExchangeStreamCaptureMode);
    std::swap(*mode, this_thread.mode);
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
{
    CALL(cuStreamBeginCapture);
    if (is_default(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!state().streams.count(stream) || stream->capturing)
        return CUDA_ERROR_INVALID_HANDLE;
    stream->capturing = true;
    stream->invalid = false;
    stream->mode = mode;
    stream->capturer = &this_thread;
    stream->graph = new CUgraph_st;
    state().graphs.insert(stream->graph);
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    CALL(cuStreamEndCapture);
    if (is_default(stream) || !state().streams.count(stream) || !stream->capturing)
        return CUDA_ERROR_INVALID_HANDLE;
    stream->capturing = false;
    *graph = stream->graph;
    if (!stream->invalid)
        return CUDA_SUCCESS;
    state().graphs.erase(stream->graph);
    delete stream->graph;
    *graph = nullptr;
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    CALL(cuStreamIsCapturing);
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!is_default(stream) && stream->capturing)
        *status = stream->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

// Work runs when it is enqueued, so an event has always happened.
CUresult cuEventCreate(CUevent *event, unsigned int)
{
    CALL(cuEventCreate);
    if (!this_thread.current())
        return CUDA_ERROR_INVALID_CONTEXT;
    *event = new CUevent_st{this_thread.current()};
    state().events.insert(*event);
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event)
{
    CALL(cuEventDestroy);
    if (!state().events.erase(event))
        return CUDA_ERROR_INVALID_HANDLE;
    delete event;
    return CUDA_SUCCESS;
}

static CUresult check(CUevent event, CUstream stream)
{
    CUcontext context = context_of(stream);
    if (!context || !state().events.count(event))
        return CUDA_ERROR_INVALID_HANDLE;
    return context->sticky;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    CALL(cuEventRecord);
    return check(event, stream);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
    CALL(cuStreamWaitEvent);
    return flags ? CUDA_ERROR_INVALID_VALUE : check(event, stream);
}

static CUresult happened(CUevent event)
{
    if (!state().events.count(event))
        return CUDA_ERROR_INVALID_HANDLE;
    if (CUresult code = unsafe())
        return code;
    return event->context->sticky;
}

CUresult cuEventQuery(CUevent event)
{
    CALL(cuEventQuery);
    return happened(event);
}

CUresult cuEventSynchronize(CUevent event)
{
    CALL(cuEventSynchronize);
    return happened(event);
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    CALL(cuGraphInstantiate);
    if (!state().graphs.count(graph) || flags)
        return CUDA_ERROR_INVALID_VALUE;
    *exec = new CUgraphExec_st{graph->work};
    state().execs.insert(*exec);
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    CALL(cuGraphLaunch);
    if (!state().execs.count(exec) || !context_of(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    for (const Work &w : exec->work)
        if (CUresult code = run_work(w))
            return code;
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    CALL(cuGraphDestroy);
    if (!state().graphs.erase(graph))
        return CUDA_ERROR_INVALID_VALUE;
    delete graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    CALL(cuGraphExecDestroy);
    if (!state().execs.erase(exec))
        return CUDA_ERROR_INVALID_VALUE;
    delete exec;
    return CUDA_SUCCESS;
}

} // extern "C"
