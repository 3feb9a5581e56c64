// Product of some rows with panels of plain weights: pairs of bfloat16, or floats. A sum is in the order of k for any
// number of rows, so a row's result does not depend on the other rows, to the bit.
#pragma once

#include "matmul.h"
#include "panels.h"

#ifdef __AVX512F__
typedef uvec pairs_t;
#else
typedef pair pairs_t __attribute__((vector_size(32), aligned(4)));
inline sums_t multiply_add(sums_t sum, pairs_t left, pair right) {
    float low = to_float(bf16{uint16_t(right)}), high = to_float(bf16{uint16_t(right >> 16)});
    const sums_t first = fma((sums_t)(left << 16), low - sums_t{}, sum);
    return fma((sums_t)(left & 0xffff0000u), high - sums_t{}, first);
}
inline sums_t multiply_add(sums_t sum, sums_t left, float right) { return fma(left, right - sums_t{}, sum); }
#endif

// Input of a lane of weights of this type.
template <typename T>
using ScalarOf = typename std::conditional<std::is_same<T, bf16>::value, pair, float>::type;

template <typename Scalar>
struct Lanes {
    typedef sums_t type;
};
template <>
struct Lanes<pair> {
    typedef pairs_t type;
};

// Scalar: input of a lane, a pair of neighbouring k or a single one.
template <typename Scalar, typename T>
struct DensePanels {
    static constexpr int STEPS = 4;  // steps between prefetches: 8 was 6 % slower at 16 rows
    const Scalar* data;  // [panels][steps][PANEL], from panel number `first` on
    const Scalar* x;     // [T][steps]
    const T* bias;
    T* out;
    int64_t num_outputs, out_row, num_steps, first;
    const Scalar* panel(int64_t number) const { return data + (number - first) * num_steps * PANEL; }
    int64_t num_bytes() const { return num_steps * PANEL * sizeof(Scalar); }
    int64_t num_points() const { return num_steps / STEPS; }

    // Multiplies M rows from `row` on by a panel.
    template <int M>
    void multiply(int64_t row, int64_t number, Prefetch ahead) const {
        typedef typename Lanes<Scalar>::type lanes_t;
        const Scalar *rows = x + row * num_steps, *w = panel(number);
        sums_t sums[M][V] = {};
        auto step = [&](int64_t k) __attribute__((always_inline)) {
            lanes_t lanes[V];
            for (int v = 0; v < V; v++) lanes[v] = load_vector<lanes_t>(w + k * PANEL + v * WIDTH);
            for (int m = 0; m < M; m++)
                for (int v = 0; v < V; v++) sums[m][v] = multiply_add(sums[m][v], lanes[v], rows[m * num_steps + k]);
        };
        int64_t k = 0;
        for (; k + STEPS <= num_steps; k += STEPS) {
            ahead.fetch();
            for (int i = 0; i < STEPS; i++) step(k + i);
        }
        for (; k < num_steps; k++) step(k);
        for (int m = 0; m < M; m++)
            write(out + (row + m) * out_row, bias, num_outputs, number * PANEL, (const float*)sums[m]);
    }
};
