// Tiles of AMX in software, for processors without them: included before amx.h with -D__AMX_BF16__ and
// -D__AMX_INT8__. Sums go along K, pair after pair, like the processor's; the rounding of a pair may differ from it.
#pragma once

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace emulated {

struct Tiles {
    uint16_t row_bytes[16];
    uint8_t rows[16];
    uint32_t lanes[8][16][16];
};
inline thread_local Tiles tiles;

inline void configure(const void* from) {
    std::memset(&tiles, 0, sizeof tiles);
    std::memcpy(tiles.row_bytes, (const char*)from + 16, sizeof tiles.row_bytes);
    std::memcpy(tiles.rows, (const char*)from + 48, sizeof tiles.rows);
}

inline void zero(int tile) { std::memset(tiles.lanes[tile], 0, sizeof tiles.lanes[tile]); }

inline void load(int tile, const void* from, int64_t stride) {
    zero(tile);
    for (int row = 0; row < tiles.rows[tile]; row++)
        std::memcpy(tiles.lanes[tile][row], (const char*)from + row * stride, tiles.row_bytes[tile]);
}

inline void store(int tile, void* to, int64_t stride) {
    for (int row = 0; row < tiles.rows[tile]; row++)
        std::memcpy((char*)to + row * stride, tiles.lanes[tile][row], tiles.row_bytes[tile]);
}

inline float float_of(uint32_t bits) {
    float out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}

inline void multiply(int sums, int left, int right) {
    for (int m = 0; m < tiles.rows[sums]; m++)
        for (int k = 0; k < tiles.row_bytes[left] / 4; k++)
            for (int n = 0; n < tiles.row_bytes[sums] / 4; n++) {
                const uint32_t a = tiles.lanes[left][m][k], b = tiles.lanes[right][k][n];
                float sum = float_of(tiles.lanes[sums][m][n]);
                sum = __builtin_fmaf(float_of(a << 16), float_of(b << 16), sum);
                sum = __builtin_fmaf(float_of(a & 0xffff0000u), float_of(b & 0xffff0000u), sum);
                std::memcpy(&tiles.lanes[sums][m][n], &sum, sizeof sum);
            }
}

inline void multiply_bytes(int sums, int left, int right) {
    for (int m = 0; m < tiles.rows[sums]; m++)
        for (int k = 0; k < tiles.row_bytes[left]; k++)
            for (int n = 0; n < tiles.row_bytes[sums] / 4; n++) {
                const int32_t a = int8_t(tiles.lanes[left][m][k / 4] >> k % 4 * 8);
                tiles.lanes[sums][m][n] += uint32_t(a * int32_t(tiles.lanes[right][k / 4][n] >> k % 4 * 8 & 255));
            }
}

template <typename... Arguments>
inline long call(long number, Arguments... arguments) {
    return number == SYS_arch_prctl ? 0 : ::syscall(number, arguments...);
}

}  // namespace emulated

#undef _tile_loadconfig
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbsud
#undef _tile_release
#define _tile_loadconfig emulated::configure
#define _tile_zero emulated::zero
#define _tile_loadd emulated::load
#define _tile_stored emulated::store
#define _tile_dpbf16ps emulated::multiply
#define _tile_dpbsud emulated::multiply_bytes
#define _tile_release() (void)0
#define syscall emulated::call
