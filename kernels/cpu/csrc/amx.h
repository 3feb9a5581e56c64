// The processor's own matrix product (AMX): up to 16 rows of bfloat16 against a panel, 32 inputs at a time, or of int8.
//
// Products of bfloat16 serve any number of rows, because their sums round differently from those of vector
// instructions. Sums of int8 are exact, so they serve where they are faster.
#pragma once

#if defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__AVX512BF16__) && defined(__linux__)
#define SPLITFUSE_AMX 1

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "panels.h"

namespace amx {

// Most rows at a time. With 32 (four sums, two tiles of rows) a step took 107 ns, two steps of 16 rows take 67.
constexpr int MOST = 16;
constexpr int STEP = 32;  // inputs of one product

// True if the kernel lets this process use tiles, for which a thread's context grows by 8 KiB.
inline bool is_allowed() {
    static const bool allowed = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */) == 0;
    return allowed;
}

// A compiler barrier, because the compiler does not know that tiles are loaded from and stored to memory.
inline void order_memory() { asm volatile("" ::: "memory"); }

// Configures and zeroes the tiles. 0 and 1: sums of rows with the two halves of a panel; 2: rows of x, `bytes` of them
// a product; from 3 on: the panel.
inline void configure(int num_rows, int bytes = 64) {
    struct {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};
    } config;
    for (int tile = 0; tile < 7; tile++) {
        config.row_bytes[tile] = uint16_t(tile == 2 ? bytes : 64);
        config.rows[tile] = uint8_t(tile < 3 ? num_rows : bytes / 4);
    }
    order_memory();
    _tile_loadconfig(&config);
}

inline void zero() {
    _tile_zero(0);
    _tile_zero(1);
}

inline void load(const float* sums) {
    order_memory();
    _tile_loadd(0, sums, PANEL * 4);
    _tile_loadd(1, sums + PANEL / 2, PANEL * 4);
}

inline void store(float* sums) {
    _tile_stored(0, sums, PANEL * 4);
    _tile_stored(1, sums + PANEL / 2, PANEL * 4);
    order_memory();
}

// Adds the products of inputs [0, num_inputs): x has rows of `stride` values, w is [inputs / 2][PANEL] pairs.
inline void add(const bf16* x, int64_t stride, const uint32_t* w, int64_t num_inputs) {
    order_memory();
    for (int64_t k = 0; k < num_inputs; k += STEP, x += STEP, w += STEP / 2 * PANEL) {
        _tile_loadd(3, w, PANEL * 4);
        _tile_loadd(4, w + PANEL / 2, PANEL * 4);
        _tile_loadd(2, x, stride * 2);
        _tile_dpbf16ps(0, 2, 3);
        _tile_dpbf16ps(1, 2, 4);
    }
}

// sums [rows][PANEL] = products of rows of int8, `stride` bytes apart, with w [inputs / 4][PANEL], quads of unsigned
// bytes, over `num_bytes` inputs, `bytes` of them a product: call configure(number of rows, bytes) before.
inline void multiply_bytes(const int8_t* x, int64_t stride, const uint32_t* w, int64_t num_bytes, int64_t bytes,
                           int32_t* sums) {
    zero();
    order_memory();
    for (int64_t k = 0; k < num_bytes; k += bytes) {
        _tile_loadd(2, x + k, stride);
        _tile_loadd(3, w + k / 4 * PANEL, PANEL * 4);
        _tile_loadd(4, w + k / 4 * PANEL + PANEL / 2, PANEL * 4);
        _tile_dpbsud(0, 2, 3);
        _tile_dpbsud(1, 2, 4);
    }
    store((float*)sums);
}

// out [num_rows][V · 16] = (or, if is_added, +=) x [num_rows][num_pairs] times w [num_pairs][V · 16], both in pairs of
// bfloat16; num_rows and num_pairs are multiples of 16. Call configure(MOST) before.
template <int V>
inline void multiply(const uint32_t* x, const uint32_t* w, int64_t num_pairs, float* out, int64_t num_rows, bool is_added) {
    static_assert(V >= 1 && V <= 4, "tiles 0 to 3 are sums, 4 rows of x, 5 and 6 parts of w");
    constexpr int64_t WIDTH = V * 16;
    order_memory();
    for (int64_t row = 0; row < num_rows; row += MOST, x += MOST * num_pairs, out += MOST * WIDTH) {
        if (is_added) {
            _tile_loadd(0, out, WIDTH * 4);
            if constexpr (V > 1) _tile_loadd(1, out + 16, WIDTH * 4);
            if constexpr (V > 2) _tile_loadd(2, out + 32, WIDTH * 4);
            if constexpr (V > 3) _tile_loadd(3, out + 48, WIDTH * 4);
        } else {
            _tile_zero(0);
            if constexpr (V > 1) _tile_zero(1);
            if constexpr (V > 2) _tile_zero(2);
            if constexpr (V > 3) _tile_zero(3);
        }
        for (int64_t k = 0; k < num_pairs; k += 16) {
            const uint32_t* panel = w + k * WIDTH;
            _tile_loadd(4, x + k, num_pairs * 4);
            _tile_loadd(5, panel, WIDTH * 4);
            _tile_dpbf16ps(0, 4, 5);
            if constexpr (V > 1) _tile_loadd(6, panel + 16, WIDTH * 4);
            if constexpr (V > 1) _tile_dpbf16ps(1, 4, 6);
            if constexpr (V > 2) _tile_loadd(5, panel + 32, WIDTH * 4);
            if constexpr (V > 2) _tile_dpbf16ps(2, 4, 5);
            if constexpr (V > 3) _tile_loadd(6, panel + 48, WIDTH * 4);
            if constexpr (V > 3) _tile_dpbf16ps(3, 4, 6);
        }
        _tile_stored(0, out, WIDTH * 4);
        if constexpr (V > 1) _tile_stored(1, out + 16, WIDTH * 4);
        if constexpr (V > 2) _tile_stored(2, out + 32, WIDTH * 4);
        if constexpr (V > 3) _tile_stored(3, out + 48, WIDTH * 4);
    }
    order_memory();
}

}  // namespace amx
#endif
