// module.cc: modules, functions and launches.
#include "state.h"

#include <cstdio>
#include <cstdlib>

namespace {

// between returns what lies between two strings, searched from `at` on, and moves
// `at` behind it; empty if there is no such place.
std::string between(const std::string &text, const char *before, const char *after, size_t &at)
{
    size_t from = text.find(before, at);
    if (from == std::string::npos)
        return "";
    from += std::string(before).size();
    size_t to = text.find(after, from);
    if (to == std::string::npos)
        return "";
    at = to;
    return text.substr(from, to - from);
}

// The CUDA version whose driver first compiles a PTX ISA version: 8.x came with 12.x.
int needed_version(const std::string &isa)
{
    return (atoi(isa.c_str()) + 4) * 1000 + atoi(isa.c_str() + isa.find('.') + 1) * 10;
}

// parse reads the entry points of a PTX text, which have one struct as parameter and
// declare how many threads their blocks have and how many blocks fit on a multiprocessor.
CUresult parse(CUmod_st &module, const std::string &ptx)
{
    size_t at = 0;
    std::string isa = between(ptx, ".version ", "\n", at);
    if (isa.empty())
        return CUDA_ERROR_INVALID_PTX;
    if (needed_version(isa) > state().driver_version)
        return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    for (;;) {
        std::string name = between(ptx, ".entry ", "(", at);
        if (name.empty())
            return module.functions.empty() ? CUDA_ERROR_INVALID_PTX : CUDA_SUCCESS;
        auto f = std::make_unique<CUfunc_st>();
        f->module = &module;
        f->name = name;
        f->parameter_bytes = atoi(between(ptx, "[", "]", at).c_str());
        f->threads = atoi(between(ptx, ".maxntid ", ",", at).c_str());
        f->resident = atoi(between(ptx, ".minnctapersm ", "\n", at).c_str());
        f->phases = phases_of(name);
        if (f->phases.empty())
            return CUDA_ERROR_INVALID_PTX;
        module.functions[name] = std::move(f);
    }
}

bool grid_fits(const unsigned blocks[3])
{
    return blocks[0] > 0 && blocks[1] > 0 && blocks[2] > 0 && blocks[0] <= 0x7fffffff && blocks[1] <= 65535 && blocks[2] <= 65535;
}

CUresult check(const Work &w, CUcontext context)
{
    if (!state().modules.count(w.function->module) || w.function->module->context != context)
        return CUDA_ERROR_INVALID_HANDLE;
    unsigned long long threads = 1ull * w.threads[0] * w.threads[1] * w.threads[2];
    if (!grid_fits(w.blocks) || threads == 0 || threads > w.function->threads)
        return CUDA_ERROR_INVALID_VALUE;
    return context->sticky;
}

void log_launch(const Work &w, CUstream stream)
{
    char line[256];
    snprintf(line, sizeof line, "%s %s device %d grid %u block %u stream %p",
             w.cooperative ? "cuLaunchCooperativeKernel" : "cuLaunchKernel", w.function->name.c_str(),
             w.function->module->context->device, w.blocks[0], w.threads[0], static_cast<void *>(stream));
    state().log.back() = line;
}

CUresult enqueue(Work &&w, CUstream stream)
{
    if (!is_default(stream) && stream->capturing) {
        if (stream->invalid)
            return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        stream->graph->work.push_back(std::move(w));
        return CUDA_SUCCESS;
    }
    for (CUstream s : state().streams)
        if (s->capturing && !(s->flags & CU_STREAM_NON_BLOCKING) && is_default(stream)) {
            s->invalid = true;
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    return run_work(w);
}

} // namespace

void destroy_modules(CUcontext context)
{
    std::set<CUmodule> &modules = state().modules;
    for (auto m = modules.begin(); m != modules.end();) {
        CUmodule module = *m;
        m = module->context == context ? modules.erase(m) : std::next(m);
        if (!modules.count(module))
            delete module;
    }
}

extern "C" {

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    CALL(cuModuleLoadData);
    if (!this_thread.current())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (CUresult code = unsafe())
        return code;
    auto m = std::make_unique<CUmod_st>();
    m->context = this_thread.current();
    if (CUresult code = parse(*m, static_cast<const char *>(image)))
        return code;
    *module = m.release();
    state().modules.insert(*module);
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module)
{
    CALL(cuModuleUnload);
    if (!state().modules.erase(module))
        return CUDA_ERROR_INVALID_HANDLE;
    delete module;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    CALL(cuModuleGetFunction);
    if (!state().modules.count(module))
        return CUDA_ERROR_INVALID_HANDLE;
    auto found = module->functions.find(name);
    if (found == module->functions.end())
        return CUDA_ERROR_NOT_FOUND;
    *function = found->second.get();
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    CALL(cuFuncGetAttribute);
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = int(function->threads);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared_bytes)
{
    CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor);
    if (!function || threads <= 0 || unsigned(threads) > function->threads || shared_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    *blocks = int(function->resident);
    return CUDA_SUCCESS;
}

// launch is what follows the checks that differ.
static CUresult launch(Work &&w, CUstream stream, void **params)
{
    CUcontext context = context_of(stream);
    if (!this_thread.current())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!context || !w.function)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!params || !params[0])
        return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = check(w, context))
        return code;
    auto from = static_cast<const unsigned char *>(params[0]);
    w.params.assign(from, from + w.function->parameter_bytes);
    log_launch(w, stream);
    return enqueue(std::move(w), stream);
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                        CUstream stream, void **params, void **extra)
{
    CALL(cuLaunchKernel);
    if (shared_bytes || extra)
        return CUDA_ERROR_INVALID_VALUE;
    return launch({function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, {}, false}, stream, params);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                   unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                   unsigned int shared_bytes, CUstream stream, void **params)
{
    CALL(cuLaunchCooperativeKernel);
    if (shared_bytes || grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1)
        return CUDA_ERROR_INVALID_VALUE;
    if (function && grid_x > function->resident * fake_multiprocessors)
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    return launch({function, {grid_x, 1, 1}, {block_x, 1, 1}, {}, true}, stream, params);
}

} // extern "C"
