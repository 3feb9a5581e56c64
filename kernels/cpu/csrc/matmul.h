// Small matrix products whose accumulators fill the registers. With AVX-512 BF16 a lane multiplies a pair of
// neighbouring bfloat16 at a time; on other processors, and for float, single floats.
#pragma once

#include <type_traits>

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

// With AVX-512 gcc 12 would read an operand from memory again for each product of a loop.
template <typename Vector>
inline Vector in_register(Vector x) {
#ifdef __AVX512F__
    asm("" : "+v"(x));
#endif
    return x;
}

// take(m, v, sum of first(m, v) and over k of a(m, k) · b[k][v]), for M values of m and V vectors of lanes. `row(m)`
// points to a(m, 0) and `step` leads to a(m, 1); num_k is positive.
template <int M, int V, typename Scalar, typename Vector, typename Row, typename First, typename Take>
inline __attribute__((always_inline)) void matmul(Row row, int64_t step, const Vector* b, int64_t num_k, First first, Take take) {
#ifdef __AVX512F__
    constexpr int AT_ONCE = V;  // vectors whose sums fit in the registers
#else
    constexpr int AT_ONCE = 1;
#endif
    const Scalar* a[M];
    for (int m = 0; m < M; m++) a[m] = row(m);
    for (int from = 0; from < V; from += AT_ONCE) {
        vec acc[M][AT_ONCE];
        for (int m = 0; m < M; m++)
            for (int v = 0; v < AT_ONCE; v++) acc[m][v] = first(m, from + v);
        int64_t k = 0;
        do {
            Vector lanes[AT_ONCE];
            for (int v = 0; v < AT_ONCE; v++) lanes[v] = in_register(b[k * V + from + v]);
            for (int m = 0; m < M; m++)
                for (int v = 0; v < AT_ONCE; v++) acc[m][v] = multiply_add(acc[m][v], lanes[v], a[m][k * step]);
        } while (++k < num_k);
        for (int m = 0; m < M; m++)
            for (int v = 0; v < AT_ONCE; v++) take(m, from + v, acc[m][v]);
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
