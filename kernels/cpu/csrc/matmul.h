// Small matrix products whose accumulators fill the registers. With AVX-512 BF16 a lane multiplies a pair of
// neighbouring bfloat16 at a time; on other processors, and for float, single floats.
#pragma once

#include "simd.h"

// Two bfloat16 per lane, the first in the low half.
typedef uint32_t pair;
inline vec multiply_add(vec sum, uvec left, pair right) {
#ifdef __AVX512BF16__
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)left, (__m512bh)_mm512_set1_epi32((int)right));
#else
    float low = to_float(bf16{uint16_t(right)}), high = to_float(bf16{uint16_t(right >> 16)});
    return fma((vec)(left & 0xffff0000u), splat(high), fma((vec)(left << 16), splat(low), sum));
#endif
}
inline vec multiply_add(vec sum, vec left, float right) { return fma(left, splat(right), sum); }

// out[m] (+)= sum over k of a(m, k) · b[k], for M values of m and V vectors of lanes. `row(m)` points to a(m, 0) and
// `step` leads to a(m, 1).
template <int M, int V, typename Scalar, typename Vector, typename Row>
inline void matmul(Row row, int64_t step, const Vector* b, int64_t num_k, vec acc[M][V]) {
    const Scalar* a[M];
    for (int m = 0; m < M; m++) a[m] = row(m);
    for (int64_t k = 0; k < num_k; k++) {
        Vector lanes[V];
        for (int v = 0; v < V; v++) lanes[v] = b[k * V + v];
        for (int m = 0; m < M; m++)
            for (int v = 0; v < V; v++) acc[m][v] = multiply_add(acc[m][v], lanes[v], a[m][k * step]);
    }
}

// Storage of operands for the products of this dtype: a Scalar is a lane's input, PACK elements of T.
template <typename T>
struct Operand {
    typedef float Scalar;
    typedef vec Vector;
    static constexpr int PACK = 1;
};
#ifdef __AVX512BF16__
template <>
struct Operand<bf16> {
    typedef pair Scalar;
    typedef uvec Vector;
    static constexpr int PACK = 2;
};
#endif
