// Walk over a weight in panels of PANEL outputs, for linear.cpp and quantized_linear.h.
//
// A weight has `multiply<M>(row, number, ahead)`, which multiplies M rows by a panel, and num_points(), the number of
// times that multiply fetches from its Prefetch.
#pragma once

#include "simd.h"
#include "team.h"

constexpr int PANEL = 32;
constexpr int BLOCK = 32;  // a weight's inputs are padded to a multiple of this
constexpr int ROWS = 96;  // number of rows of x that stay in the second-level cache beside a panel
constexpr int64_t FEWEST_PRODUCTS = 1 << 17;  // fewest products for which a second thread is woken

// Sums with the lanes of one register: those of MOST rows of a panel fill the registers. Without AVX-512 a sum is half
// as wide, because gcc keeps a vector that is wider than a register in memory (AVX2: 40 times slower at 8 rows).
typedef lanes_t sums_t;
#ifdef __AVX512F__
constexpr int MOST = 12;
#else
constexpr int MOST = 3;
#endif
constexpr int WIDTH = sizeof(sums_t) / sizeof(float), V = PANEL / WIDTH;

// Prefetch of lines of memory into the second-level cache: `lines` at every point. The first of several passes over a
// panel would wait for memory and the others leave it idle, so every pass fetches its share of the next panel (32 rows:
// 19.1 -> 14.9 ms; into the first-level cache 8 rows took 0.92 ms instead of 0.53).
struct Prefetch {
    const char* from;
    int lines;
    void fetch() {
        for (int i = 0; i < lines; i++, from += 64) __builtin_prefetch(from, 0, 2);
    }
};

// Writes PANEL sums of a row to its `out` [num_outputs], from `output` on, with the bias if there is one.
template <typename T>
void write(T* out, const T* bias, int64_t num_outputs, int64_t output, const float* sums) {
    int64_t width = num_outputs - output < PANEL ? num_outputs - output : PANEL;
    T* to = out + output;
    if (bias) bias += output;
    if (width == PANEL) {
        for (int i = 0; i < PANEL; i += LANES) store(to + i, bias ? load(sums + i) + load(bias + i) : load(sums + i));
        return;
    }
    for (int64_t i = 0; i < width; i++) store_one(to + i, sums[i] + (bias ? to_float(bias[i]) : 0.0f));
}

// Multiplies at most M rows.
template <int M, typename Weight>
void multiply_rows(int num_rows, const Weight& w, int64_t row, int64_t number, Prefetch ahead = {}) {
    if (num_rows == M) return w.template multiply<M>(row, number, ahead);
    if constexpr (M > 1) multiply_rows<M - 1>(num_rows, w, row, number, ahead);
}

// Multiplies rows [begin, end) by a panel, in passes of nearly equal size and at most MANY rows. Every pass fetches a
// share of the next panel.
template <int MANY, typename Panels>
void multiply_panel(const Panels& w, int64_t number, int64_t begin, int64_t end, const void* next, int64_t num_bytes) {
    const int64_t passes = (end - begin + MANY - 1) / MANY, points = w.num_points();
    const int lines = int((num_bytes / 64 + passes * points - 1) / (passes * points));
    for (int64_t pass = 0, at = 0; pass < passes; pass++, at += points * lines * 64) {
        const int num_rows = int((end - begin) / (passes - pass));
        multiply_rows<MANY>(num_rows, w, begin, number, {(const char*)next + at, at < num_bytes ? lines : 0});
        begin += num_rows;
    }
}

inline int threads_for(int64_t num_products, int64_t num_threads) {
    return num_products < FEWEST_PRODUCTS ? 1 : int(num_threads);
}

template <typename Weight>
void multiply_panels(const Weight& w, int64_t num_rows, const Team& team) {
    const int64_t num_panels = (w.num_outputs + PANEL - 1) / PANEL;
    const int64_t parts = (num_rows + ROWS - 1) / ROWS;
    team.share_out(num_panels * parts, [&](int64_t item, int64_t next) {
        const int64_t number = item / parts, begin = item % parts * ROWS;
        const int64_t end = begin + ROWS < num_rows ? begin + ROWS : num_rows;
        multiply_panel<MOST>(w, number, begin, end, w.panel(next / parts), next / parts == number ? 0 : w.num_bytes());
    });
}

// Items of work: a panel with all rows, or with a part of the rows if there are too few panels for the threads.
struct Work {
    int64_t num_rows, parts, size, count;

    Work(int64_t num_outputs, int64_t num_rows, const Team& team) : num_rows(num_rows) {
        const int64_t num_panels = (num_outputs + PANEL - 1) / PANEL;
        parts = (4 * team.num_threads + num_panels - 1) / num_panels;
        if (parts > num_rows / ROWS) parts = num_rows / ROWS;
        if (parts < 1 || team.num_threads == 1) parts = 1;
        size = ((num_rows + parts - 1) / parts + BLOCK - 1) / BLOCK * BLOCK;
        count = num_panels * parts;
    }

    // Calls product(number, begin, end) with the item's panel and rows [begin, end).
    template <typename Product>
    void of(int64_t item, Product product) const {
        const int64_t begin = item % parts * size, end = begin + size < num_rows ? begin + size : num_rows;
        if (begin < end) product(item / parts, begin, end);
    }
};

// Calls product(number, begin, end, next) for each panel and rows [begin, end), shared out dynamically: a thread that
// waits longer for memory takes fewer. `next`: the panel that the thread reads after this one, or this one.
template <typename Product>
void walk(int64_t num_outputs, int64_t num_rows, const Team& team, Product product) {
    const Work work(num_outputs, num_rows, team);
    team.share_out(work.count, [&](int64_t item, int64_t next) {
        work.of(item, [&](int64_t number, int64_t begin, int64_t end) { product(number, begin, end, next / work.parts); });
    });
}
