// The processor's own matrix product (AMX): up to 32 rows of bfloat16 against a panel, 32 inputs at a time.
//
// All numbers of rows go this way, since its sums round otherwise than those of vector instructions.
#pragma once

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#define SPLITFUSE_AMX 1

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "panels.h"

namespace amx {

constexpr int TILE = 16;        // rows of a tile, of 64 bytes each
constexpr int MOST = 2 * TILE;  // rows of x at a time
constexpr int STEP = 32;        // inputs that a product takes

// Whether the kernel lets this process have tiles: 8 KiB that a thread must be given room for.
inline bool is_allowed() {
    static const bool allowed = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */) == 0;
    return allowed;
}

// The compiler does not know that tiles are loaded from and stored to memory.
inline void order_memory() { asm volatile("" ::: "memory"); }

// Tiles 0 to 3: sums of the first rows, two halves of a panel, and of the others; 4 and 5: rows; 6 and 7: the panel.
inline void configure(int num_rows) {
    struct {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};
    } config;
    const int first = num_rows < TILE ? num_rows : TILE, second = num_rows > TILE ? num_rows - TILE : 1;
    const int rows[8] = {first, first, second, second, first, second, TILE, TILE};
    for (int tile = 0; tile < 8; tile++) config.row_bytes[tile] = 64, config.rows[tile] = uint8_t(rows[tile]);
    order_memory();
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

// Adds the products of inputs [0, num_inputs): x has rows of `stride` values, w is [inputs / 2][PANEL] pairs.
template <bool IS_LONG>
inline void add(const bf16* x, int64_t stride, const uint32_t* w, int64_t num_inputs) {
    order_memory();
    for (int64_t k = 0; k < num_inputs; k += STEP, x += STEP, w += STEP / 2 * PANEL) {
        _tile_loadd(6, w, PANEL * 4);
        _tile_loadd(7, w + TILE, PANEL * 4);
        _tile_loadd(4, x, stride * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (IS_LONG) {
            _tile_loadd(5, x + TILE * stride, stride * 2);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
}

inline void store(float (*sums)[PANEL], bool is_long) {
    _tile_stored(0, sums[0], PANEL * 4);
    _tile_stored(1, sums[0] + TILE, PANEL * 4);
    if (is_long) {
        _tile_stored(2, sums[TILE], PANEL * 4);
        _tile_stored(3, sums[TILE] + TILE, PANEL * 4);
    }
    order_memory();
}

}  // namespace amx
#endif
