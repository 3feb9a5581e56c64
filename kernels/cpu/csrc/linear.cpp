// Matrix products with bfloat16 weights on the CPU, from one row to a prompt's: one layout, read once, at memory speed.
//
// Layout, by the packer in linear.py: panels of PANEL outputs; in a panel, for each pair of neighbouring k, the
// pairs of its outputs. The order of a sum is that of k whatever the number of rows, so a row's result does not depend
// on its company to the bit.

#include "panels.h"
#include "matmul.h"

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

struct Linear {
    static constexpr int LINES = 2 * STEPS;
    const pair* data;  // [panels][pairs][PANEL]
    const pair* x;     // [T][pairs]
    const bf16* bias;  // [N] or null
    bf16* out;         // [T][N]
    int64_t num_outputs, num_inputs;
    const pair* panel(int64_t number) const { return data + number * num_inputs / 2 * PANEL; }
    int64_t num_points() const { return num_inputs / 2 / STEPS; }

    // M rows from `row` against P panels from `number`.
    template <int M, int P>
    void multiply(int64_t row, int64_t number, Ahead ahead) const {
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

// x [T, K], data from the packer, bias [N] or null → out [T, N]; K is even.
extern "C" void linear_bfloat16(const void* x, const void* data, const void* bias, void* out, int64_t num_rows,
                                int64_t num_outputs, int64_t num_inputs, int64_t num_threads) {
    Linear l{(const pair*)data, (const pair*)x, (const bf16*)bias, (bf16*)out, num_outputs, num_inputs};
    multiply_panels(l, num_rows, (int)num_threads);
}
