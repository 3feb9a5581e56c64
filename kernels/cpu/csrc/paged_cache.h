// Layout of keys or values in a cache [N, Hkv, …]. A head's block holds values [S][D] and, if they are int8, behind
// them their scales [S] in float. kernels/int8_cache.py has this layout too.
#pragma once

#include <type_traits>

#include "simd.h"

typedef float loose_float __attribute__((aligned(1)));  // may begin at any byte

// Consecutive tokens in memory, from a given token on.
template <typename C>
struct CachedRun {
    C* values;            // [run][D]
    loose_float* scales;  // [run], or null
};

template <typename C>
struct PagedCache {
    static constexpr bool HAS_SCALES = std::is_same<C, int8_t>::value;
    const void* data;
    int64_t num_kv_heads, block_size, head_dim;

    CachedRun<C> at(int64_t block, int64_t head, int64_t offset) const {
        const int64_t num_values = block_size * head_dim;
        const int64_t bytes = num_values * sizeof(C) + (HAS_SCALES ? block_size * sizeof(float) : 0);
        char* start = (char*)data + (block * num_kv_heads + head) * bytes;
        char* scales = HAS_SCALES ? start + num_values + offset * sizeof(float) : nullptr;
        return {(C*)start + offset * head_dim, (loose_float*)scales};
    }
};

// Cache of an op's keys or values.
template <typename C, typename Op>
PagedCache<C> cache_of(const Op& op, const void* data) {
    return {data, op.num_kv_heads, op.block_size, op.head_dim};
}
