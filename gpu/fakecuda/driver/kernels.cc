// kernels.cc: the sources of gpu/kernels, compiled for the host.
#include "kernels.h"

#include <map>

#include "cast.cuh"
#include "gather.cu"
#include "permute.cu"
#include "reference.cu"

// do is called with every pair of types of cast.cuh.
#define TO_ALL(do, S) do(S, f64) do(S, f32) do(S, f16) do(S, bf16) do(S, e4m3) do(S, e5m2)
#define FROM_ALL(do) TO_ALL(do, f64) TO_ALL(do, f32) TO_ALL(do, f16) TO_ALL(do, bf16) TO_ALL(do, e4m3) TO_ALL(do, e5m2)

FROM_ALL(CAST)

namespace {

template <typename Parameters, void (*kernel)(const Parameters &)> void whole(const void *params)
{
    kernel(*static_cast<const Parameters *>(params));
}

// registers_of_thread is what the running thread keeps from one phase to the next.
template <typename Registers> Registers &registers_of_thread()
{
    static std::vector<Registers> all;
    size_t number = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (number >= all.size())
        all.resize(number + 1);
    return all[number];
}

template <typename V, typename Parameters> void load_phase(const void *params)
{
    Outside<V> &registers = registers_of_thread<Outside<V>>();
    registers = {};
    permute_load(*static_cast<const Parameters *>(params), registers);
}

template <typename V, typename Parameters> void walk_phase(const void *params)
{
    permute_walk(*static_cast<const Parameters *>(params), registers_of_thread<Outside<V>>());
}

#define PERMUTE_PHASES(name, V)                                                                                        \
    {"permute_" name "_4k", {load_phase<V, Permute4K>, walk_phase<V, Permute4K>}},                                     \
        {"permute_" name "_32k", {load_phase<V, Permute32K>, walk_phase<V, Permute32K>}},                              \
    {                                                                                                                  \
        "permute_" name "_far", {load_phase<V, PermuteFar>, walk_phase<V, PermuteFar>}                                 \
    }

#define NAMED_CASTS(S, T)                                                                                              \
    {"cast_" #S "_" #T "_4k", {whole<Table4K, cast_##S##_##T##_4k>}}, {"cast_" #S "_" #T "_32k", {whole<Table32K, cast_##S##_##T##_32k>}},

// Kernels without a barrier of the grid have one phase.
const std::map<std::string, std::vector<Phase>> kernels = {
    {"gather_block_4k", {whole<Table4K, gather_block_4k>}},
    {"gather_block_32k", {whole<Table32K, gather_block_32k>}},
    {"gather_warp_4k", {whole<Table4K, gather_warp_4k>}},
    {"gather_warp_32k", {whole<Table32K, gather_warp_32k>}},
    {"gather_narrow_9k", {whole<Table9K, gather_narrow_9k>}},
    {"gather_narrow_18k", {whole<Table18K, gather_narrow_18k>}},
    {"gather_narrow_32k", {whole<Table32K, gather_narrow_32k>}},
    {"gather_pieces_4k", {whole<Table4K, gather_pieces_4k>}},
    {"gather_pieces_9k", {whole<Table9K, gather_pieces_9k>}},
    {"gather_pieces_32k", {whole<Table32K, gather_pieces_32k>}},
    {"gather_vectors_4k", {whole<Table4K, gather_vectors_4k>}},
    {"gather_vectors_9k", {whole<Table9K, gather_vectors_9k>}},
    {"gather_vectors_32k", {whole<Table32K, gather_vectors_32k>}},
    {"gather_slots_4k", {whole<Table4K, gather_slots_4k>}},
    {"gather_slots_9k", {whole<Table9K, gather_slots_9k>}},
    {"gather_slots_32k", {whole<Table32K, gather_slots_32k>}},
    {"gather_units_4k", {whole<Table4K, gather_units_4k>}},
    {"gather_units_9k", {whole<Table9K, gather_units_9k>}},
    {"gather_units_32k", {whole<Table32K, gather_units_32k>}},
    {"gather_mixed_4k", {whole<Table4K, gather_mixed_4k>}},
    {"gather_mixed_32k", {whole<Table32K, gather_mixed_32k>}},
    {"gather_byte_4k", {whole<Table4K, gather_byte_4k>}},
    {"gather_byte_32k", {whole<Table32K, gather_byte_32k>}},
    {"gather_byte_narrow", {whole<Table32K, gather_byte_narrow>}},
    {"permute_byte", {whole<PermuteFar, permute_byte>}},
    FROM_ALL(NAMED_CASTS)
    PERMUTE_PHASES("1", u8),
    PERMUTE_PHASES("2", u16),
    PERMUTE_PHASES("4", u32),
    PERMUTE_PHASES("8", u64),
    PERMUTE_PHASES("16", Vec16),
    PERMUTE_PHASES("slice2", Slice<2>),
    PERMUTE_PHASES("slice4", Slice<4>),
};

} // namespace

std::vector<Phase> phases_of(const std::string &kernel)
{
    auto found = kernels.find(kernel);
    return found == kernels.end() ? std::vector<Phase>{} : found->second;
}
