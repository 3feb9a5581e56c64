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

inline uvec as_bf16(vec x) {
    uvec bits = (uvec)x;
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

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
