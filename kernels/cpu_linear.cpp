// Matrix products with bfloat16 weights on the CPU, from one row to a prompt's: one layout, read once, at memory speed.
//
// Layout, by the packer in cpu_linear.py: panels of PANEL outputs; in a panel, for each pair of neighbouring k, the
// pairs of its outputs. The order of a sum is that of k whatever the number of rows, so a row's result does not depend
// on its company to the bit.

#include "cpu_product.h"

namespace {

constexpr int PANEL = 32, STEP_LINES = 2;  // lines of memory that a panel takes per pair of k
constexpr int STEPS = 4;  // k pairs between prefetches: 8 was 6 % slower at 16 rows
constexpr int ROWS = 96;  // rows of x that stay in the second-level cache beside a panel
constexpr int FEW = 3;    // up to here SIDE panels at a time, for enough independent sums

// Sums of as many lanes as a register has: MOST rows of a panel fill the registers. Elsewhere halves are named as such,
// since gcc keeps a vector that is wider than a register in memory (AVX2: 40 times slower at 8 rows).
#ifdef __AVX512F__
typedef vec sums_t;
typedef uvec pairs_t;
constexpr int MOST = 12, SIDE = 2;
#else
typedef float sums_t __attribute__((vector_size(32), aligned(4)));
typedef pair pairs_t __attribute__((vector_size(32), aligned(4)));
constexpr int MOST = 3, SIDE = 1;
inline sums_t multiply_add(sums_t sum, pairs_t left, pair right) {
    float low = to_float(bf16{uint16_t(right)}), high = to_float(bf16{uint16_t(right >> 16)});
    return sum + (sums_t)(left << 16) * low + (sums_t)(left & 0xffff0000u) * high;
}
#endif
constexpr int WIDTH = sizeof(sums_t) / sizeof(float), V = PANEL / WIDTH;

struct Linear {
    const pair* data;  // [panels][pairs][PANEL]
    const pair* x;     // [T][pairs]
    const bf16* bias;  // [N] or null
    bf16* out;         // [T][N]
    int64_t num_outputs, num_pairs;
    const pair* panel(int64_t number) const { return data + number * num_pairs * PANEL; }
};

// Lines of memory to ask for early: `lines` after every STEPS pairs. The first of several passes over a panel would wait
// for memory and the others leave it idle, so each pass fetches its share of the next panel (32 rows: 19.1 -> 14.9 ms).
struct Ahead {
    const char* from;
    int lines;
};

void write(const Linear& l, int64_t row, int64_t output, const float* sums) {
    int64_t width = l.num_outputs - output < PANEL ? l.num_outputs - output : PANEL;
    bf16* to = l.out + row * l.num_outputs + output;
    const bf16* bias = l.bias ? l.bias + output : nullptr;
    if (width == PANEL) {
        for (int i = 0; i < PANEL; i += LANES) store(to + i, bias ? load(sums + i) + load(bias + i) : load(sums + i));
        return;
    }
    for (int64_t i = 0; i < width; i++) store_one(to + i, sums[i] + (bias ? to_float(bias[i]) : 0.0f));
}

// M rows from `row` against P panels from `number`.
template <int M, int P>
void multiply(const Linear& l, int64_t row, int64_t number, Ahead ahead) {
    const int64_t pairs = l.num_pairs;
    const pair* x = l.x + row * pairs;
    const pair* w = l.panel(number);
    sums_t sums[M][P * V] = {};
    auto step = [&](int64_t k) __attribute__((always_inline)) {
        pairs_t lanes[P * V];
        for (int v = 0; v < P * V; v++) std::memcpy(lanes + v, w + (v / V * pairs + k) * PANEL + v % V * WIDTH, sizeof(pairs_t));
        for (int m = 0; m < M; m++)
            for (int v = 0; v < P * V; v++) sums[m][v] = multiply_add(sums[m][v], lanes[v], x[m * pairs + k]);
    };
    int64_t k = 0;
    for (; k + STEPS <= pairs; k += STEPS) {
        if constexpr (P == 1)
            for (int i = 0; i < ahead.lines; i++, ahead.from += 64) __builtin_prefetch(ahead.from);
        for (int i = 0; i < STEPS; i++) step(k + i);
    }
    for (; k < pairs; k++) step(k);
    for (int m = 0; m < M; m++)
        for (int p = 0; p < P; p++) write(l, row + m, (number + p) * PANEL, (const float*)(sums[m] + p * V));
}

template <int P, int M>
void multiply(int num_rows, const Linear& l, int64_t row, int64_t number, Ahead ahead) {
    if (num_rows == M) return multiply<M, P>(l, row, number, ahead);
    if constexpr (M > 1) multiply<P, M - 1>(num_rows, l, row, number, ahead);
}

// Rows [begin, begin + count) against one panel, in passes of about the same size.
void multiply_panel(const Linear& l, int64_t begin, int64_t count, int64_t number, bool fetches_next) {
    const int64_t passes = (count + MOST - 1) / MOST;
    const char* end = (const char*)l.panel(number + 2);
    Ahead ahead{(const char*)l.panel(number + 1), int((STEP_LINES * STEPS + passes - 1) / passes)};
    for (int64_t pass = 0, row = 0; pass < passes; pass++) {
        int num_rows = int((count - row) / (passes - pass));
        if (!fetches_next || ahead.from >= end) ahead.lines = 0;
        multiply<1, MOST>(num_rows, l, begin + row, number, ahead);
        row += num_rows;
        ahead.from += l.num_pairs / STEPS * ahead.lines * 64;
    }
}

void linear(const Linear& l, int64_t num_rows, int num_threads) {
    const int64_t num_panels = (l.num_outputs + PANEL - 1) / PANEL;
    if (num_rows <= FEW) {
#pragma omp parallel for num_threads(num_threads) schedule(static)
        for (int64_t number = 0; number < num_panels; number += SIDE) {
            if (number + SIDE <= num_panels) multiply<SIDE, FEW>(int(num_rows), l, 0, number, {});
            else multiply<1, FEW>(int(num_rows), l, 0, number, {});
        }
        return;
    }
    const int64_t parts = (num_rows + ROWS - 1) / ROWS;
#pragma omp parallel for num_threads(num_threads) schedule(static)
    for (int64_t item = 0; item < num_panels * parts; item++) {
        int64_t number = item / parts, begin = item % parts * ROWS;
        int64_t count = num_rows - begin < ROWS ? num_rows - begin : ROWS;
        multiply_panel(l, begin, count, number, begin + count == num_rows && number + 1 < num_panels);
    }
}

constexpr int64_t FEWEST_PRODUCTS = 1 << 17;  // for which a second thread is woken

}  // namespace

// x [T, K], data from the packer, bias [N] or null → out [T, N]; K is even.
extern "C" void linear_bfloat16(const void* x, const void* data, const void* bias, void* out, int64_t num_rows,
                                int64_t num_outputs, int64_t num_inputs, int64_t num_threads) {
    Linear l{(const pair*)data, (const pair*)x, (const bf16*)bias, (bf16*)out, num_outputs, num_inputs / 2};
    bool is_small = num_rows * num_outputs * num_inputs < FEWEST_PRODUCTS;
    linear(l, num_rows, is_small ? 1 : (int)num_threads);
}
