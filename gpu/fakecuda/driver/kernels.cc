// kernels.cc: the sources of gpu/kernels, compiled for the host.
#include "kernels.h"

#include <map>

#include "gather.cu"
#include "reference.cu"

namespace {

template <typename Parameters, void (*kernel)(const Parameters &)> void whole(const void *params)
{
    kernel(*static_cast<const Parameters *>(params));
}

// Kernels without a barrier of the grid have one phase.
const std::map<std::string, std::vector<Phase>> kernels = {
    {"gather_block_4k", {whole<Table4K, gather_block_4k>}},
    {"gather_block_32k", {whole<Table32K, gather_block_32k>}},
    {"gather_warp_4k", {whole<Table4K, gather_warp_4k>}},
    {"gather_warp_32k", {whole<Table32K, gather_warp_32k>}},
    {"gather_strided_4k", {whole<Table4K, gather_strided_4k>}},
    {"gather_strided_32k", {whole<Table32K, gather_strided_32k>}},
    {"gather_byte_4k", {whole<Table4K, gather_byte_4k>}},
    {"gather_byte_32k", {whole<Table32K, gather_byte_32k>}},
};

} // namespace

std::vector<Phase> phases_of(const std::string &kernel)
{
    auto found = kernels.find(kernel);
    return found == kernels.end() ? std::vector<Phase>{} : found->second;
}
