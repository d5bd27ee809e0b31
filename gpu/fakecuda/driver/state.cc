#include "state.h"

#include <cstdlib>
#include <cstring>
#include <sstream>

State &state()
{
    static State *s = new State; // never destroyed: calls may come while the process exits
    return *s;
}

thread_local Thread this_thread;

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

State::State()
{
    driver_version = number("FAKECUDA_DRIVER_VERSION", 12090);
    devices.resize(number("FAKECUDA_DEVICES", 2));
    for (size_t i = 0; i < devices.size(); i++)
        devices[i].device = int(i);
    const char *text = getenv("FAKECUDA_FAIL");
    std::istringstream list(text ? text : "");
    for (std::string item; std::getline(list, item, ',');) {
        size_t first = item.find(':'), second = item.rfind(':');
        if (first == second)
            continue;
        failures.push_back({item.substr(0, first), atoi(item.c_str() + first + 1), atoi(item.c_str() + second + 1)});
    }
}

Entry::Entry(const char *function, bool before_init) : held_(state().lock)
{
    State &s = state();
    s.log.push_back(function);
    for (size_t i = 0; i < s.failures.size(); i++) {
        State::Failure &f = s.failures[i];
        if ((f.function != "*" && f.function != function) || --f.nth > 0)
            continue;
        code_ = CUresult(f.code);
        s.failures.erase(s.failures.begin() + i);
        return;
    }
    if (!s.initialised && !before_init)
        code_ = CUDA_ERROR_NOT_INITIALIZED;
}

CUresult unsafe()
{
    if (this_thread.mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    CUresult code = CUDA_SUCCESS;
    for (CUstream s : state().streams) {
        bool mine = s->capturer == &this_thread;
        bool global = this_thread.mode == CU_STREAM_CAPTURE_MODE_GLOBAL && s->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (!s->capturing || s->mode == CU_STREAM_CAPTURE_MODE_RELAXED || !(mine || global))
            continue;
        s->invalid = true;
        code = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return code;
}

extern "C" {

void fakecuda_fail(const char *function, int nth, int code)
{
    std::lock_guard<std::mutex> held(state().lock);
    state().failures.push_back({function, nth, code});
}

void fakecuda_reset(void)
{
    std::lock_guard<std::mutex> held(state().lock);
    state().failures.clear();
    state().log.clear();
    for (CUctx_st &c : state().devices)
        c.sticky = CUDA_SUCCESS;
    for (CUcontext c : state().contexts)
        c->sticky = CUDA_SUCCESS;
}

int fakecuda_calls(void)
{
    std::lock_guard<std::mutex> held(state().lock);
    return int(state().log.size());
}

const char *fakecuda_call(int n)
{
    std::lock_guard<std::mutex> held(state().lock);
    return n >= 0 && size_t(n) < state().log.size() ? state().log[n].c_str() : nullptr;
}

long long fakecuda_live(int kind)
{
    State &s = state();
    std::lock_guard<std::mutex> held(s.lock);
    long long n = 0;
    switch (kind) {
    case FAKECUDA_CONTEXTS:
        for (CUctx_st &c : s.devices)
            n += c.retains;
        return n + s.contexts.size();
    case FAKECUDA_MODULES:
        return s.modules.size();
    case FAKECUDA_ALLOCATIONS:
        return s.memory.size();
    case FAKECUDA_BYTES:
        for (auto &m : s.memory)
            n += m.second.bytes;
        return n;
    case FAKECUDA_STREAMS:
        return s.streams.size();
    case FAKECUDA_EVENTS:
        return s.events.size();
    case FAKECUDA_GRAPHS:
        return s.graphs.size() + s.execs.size();
    case FAKECUDA_PINNED:
        for (auto &m : s.pinned)
            n += m.second;
        return n;
    default:
        return -1;
    }
}

int fakecuda_current(void)
{
    return this_thread.current() ? this_thread.current()->device : -1;
}

} // extern "C"
