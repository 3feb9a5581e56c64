// Matmuls with bfloat16 weights on the CPU, from one row to a prompt's: one layout, read once, at memory speed.
//
// Layout, by the packer in linear.py: panels of PANEL outputs; in a panel, for each pair of neighbouring k, the
// pairs of its outputs. The order of a sum is that of k whatever the number of rows, so a row's result does not depend
// on the other rows, to the bit.

#include "arguments.h"
#include "matmul.h"
#include "panels.h"

namespace {

constexpr int STEPS = 4;  // k pairs between prefetches: 8 was 6 % slower at 16 rows

#ifdef __AVX512F__
typedef uvec pairs_t;
#else
typedef pair pairs_t __attribute__((vector_size(32), aligned(4)));
inline sums_t multiply_add(sums_t sum, pairs_t left, pair right) {
    float low = to_float(bf16{uint16_t(right)}), high = to_float(bf16{uint16_t(right >> 16)});
    return sum + (sums_t)(left << 16) * low + (sums_t)(left & 0xffff0000u) * high;
}
#endif

struct Bf16Weight {
    static constexpr int LINES = 2 * STEPS;
    const pair* data;  // [panels][pairs][PANEL]
    const pair* x;     // [T][pairs]
    const bf16* bias;
    bf16* out;
    int64_t num_outputs, num_inputs;
    const pair* panel(int64_t number) const { return data + number * num_inputs / 2 * PANEL; }
    int64_t num_points() const { return num_inputs / 2 / STEPS; }

    // M rows from `row` against P panels from `number`.
    template <int M, int P>
    void multiply(int64_t row, int64_t number, Prefetch ahead) const {
        const int64_t pairs = num_inputs / 2;
        const pair* rows = x + row * pairs;
        const pair* w = panel(number);
        sums_t sums[M][P * V] = {};
        auto step = [&](int64_t k) __attribute__((always_inline)) {
            pairs_t lanes[P * V];
            for (int v = 0; v < P * V; v++) std::memcpy(lanes + v, w + (v / V * pairs + k) * PANEL + v % V * WIDTH, sizeof(pairs_t));
            for (int m = 0; m < M; m++)
                for (int v = 0; v < P * V; v++) sums[m][v] = multiply_add(sums[m][v], lanes[v], rows[m * pairs + k]);
        };
        int64_t k = 0;
        for (; k + STEPS <= pairs; k += STEPS) {
            if constexpr (P == 1) ahead.fetch();  // up to FEW rows it only costs: 6.9 -> 8.7 ms
            for (int i = 0; i < STEPS; i++) step(k + i);
        }
        for (; k < pairs; k++) step(k);
        for (int m = 0; m < M; m++)
            for (int p = 0; p < P; p++)
                write(out, bias, num_outputs, row + m, (number + p) * PANEL, (const float*)(sums[m] + p * V));
    }
};

}  // namespace

extern "C" void linear(const Linear& a) {
    Bf16Weight weight{(const pair*)a.data, (const pair*)a.x, a.bias, a.out, a.num_outputs, a.num_inputs};
    multiply_panels(weight, a.num_rows, a.num_threads);
}
