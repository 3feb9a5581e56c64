// Order of an attended query's sums, which both kernels keep to the bit: attention_decode.cpp, whose lanes are keys and
// then head dimensions, and attention_prefill.cpp, whose lanes are queries.
//
// Keys come in tiles of TILE at multiples of TILE, whatever the chunk:
//   score    products of q and a key, pair after pair of D (matmul.h), times the key's scale; then the soft-cap
//   weight   e^(score - largest score so far); the sum of a tile's weights has LANES chains, one for each key modulo
//            LANES, which `sum` (simd.h) joins. The weight times an int8 value's scale is rounded to bfloat16 in pairs
//            A head's sink is the first largest score, with the weight 1 and no value
//   sums     (sums so far) · fade, then weight · value, pair after pair of keys
// Hidden keys have the weight 0 and add nothing. No product but those of `fma` is fused with a sum: build.py compiles
// both files without contractions.
#pragma once

#include <type_traits>

#include "amx.h"
#include "arguments.h"
#include "matmul.h"
#include "paged_cache.h"

constexpr int TILE = 64;

// True if the processor's tiles multiply heads of this size: whole tiles of bfloat16. They round differently from
// vector instructions, so they then attend rows of every length.
template <typename T>
bool uses_tiles(int64_t dim) {
#ifdef SPLITFUSE_AMX
    return std::is_same<T, bf16>::value && dim % amx::STEP == 0 && amx::is_allowed();
#else
    return false;
#endif
}

// Inlined always: gcc 12 drops calls of a function that only prefetches.
template <int LOCALITY = 3>
inline __attribute__((always_inline)) void fetch(const void* from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char*)from + i, 0, LOCALITY);
}

// Pairs of bfloat16, of which `low` has the first ones.
#ifdef __AVX512BF16__
inline uvec as_pairs(vec low, vec high) {
    alignas(64) static constexpr uint16_t ORDER[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
    return (uvec)_mm512_permutexvar_epi16(_mm512_load_si512(ORDER), both);
}
#else
uvec as_pairs(vec low, vec high);  // other processors multiply floats
#endif

// Last key that a query at this position of a row of `length` keys sees.
template <typename Op>
int64_t last_key(const Op& a, int64_t position, int64_t length) {
    return position + a.lookahead < length ? position + a.lookahead : length - 1;
}

// First key that a query at this position sees.
template <typename Op>
int64_t first_key(const Op& a, int64_t position) {
    return a.window && position >= a.window ? position - a.window + 1 : 0;
}

constexpr int64_t MAX_LINE = 1024;  // most numbers of a key or a value

// Lines of a tile of keys in the cache, with the factors of their scores and of their values. The visible keys are
// [at + from, at + to); the lines of the others are zeros.
struct Lines {
    int64_t at, from, to;
    const void *keys[TILE], *values[TILE];
    float key_scales[TILE], value_scales[TILE];

    // Finds the lines of keys of [start, stop) in the tile that begins at `tile`, and fetches their scales.
    template <typename C, typename Op>
    void find_lines(const Op& a, int64_t row, int64_t kv_head, int64_t tile, int64_t start, int64_t stop) {
        static const C nothing[MAX_LINE] = {};
        at = tile, from = start > at ? start - at : 0, to = stop - at < TILE ? stop - at : TILE;
        for (int64_t i = 0; i < from; i++) keys[i] = values[i] = nothing;
        for (int64_t i = to; i < TILE; i++) keys[i] = values[i] = nothing;
        each_run<C>(a, row, kv_head, [&](int64_t i, int64_t end, CachedRun<C> key, CachedRun<C> value) {
            if (PagedCache<C>::HAS_SCALES) fetch(key.scales, (end - i) * 4), fetch(value.scales, (end - i) * 4);
            for (; i < end; i++, key.values += a.head_dim, value.values += a.head_dim)
                keys[i] = key.values, values[i] = value.values;
        });
    }

    // Finds the factors of the same lines.
    template <typename C, typename Op>
    void find_scales(const Op& a, int64_t row, int64_t kv_head) {
        for (int64_t i = 0; i < TILE; i++) key_scales[i] = a.scale, value_scales[i] = 0;
        if (!PagedCache<C>::HAS_SCALES) return;
        each_run<C>(a, row, kv_head, [&](int64_t i, int64_t end, CachedRun<C> key, CachedRun<C> value) {
            for (; i < end; i++) key_scales[i] = a.scale * *key.scales++, value_scales[i] = *value.scales++;
        });
    }

    template <typename C, typename Op>
    void find(const Op& a, int64_t row, int64_t kv_head, int64_t tile, int64_t start, int64_t stop) {
        find_lines<C>(a, row, kv_head, tile, start, stop);
        find_scales<C>(a, row, kv_head);
    }

   private:
    // Calls f(i, end, key, value) for runs [i, end) of visible keys that are neighbours in the cache.
    template <typename C, typename Op, typename Function>
    void each_run(const Op& a, int64_t row, int64_t kv_head, Function f) const {
        const auto key_cache = cache_of<C>(a, a.k_cache), value_cache = cache_of<C>(a, a.v_cache);
        const int32_t* block = a.block_tables + row * a.max_blocks + (at + from) / a.block_size;
        int64_t offset = (at + from) % a.block_size;
        for (int64_t i = from, end; i < to; i = end, offset = 0, block++) {
            end = a.block_size - offset < to - i ? i + a.block_size - offset : to;
            f(i, end, key_cache.at(*block, kv_head, offset), value_cache.at(*block, kv_head, offset));
        }
    }
};
