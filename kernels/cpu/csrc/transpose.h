// Transposition of a matrix, in registers.
#pragma once

#include <cstdint>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#ifdef __AVX512F__
// Transposes the 4 x 4 numbers of each quarter of four lines. `IN_HALVES`: a quarter then has the low halves of its
// numbers, then the high ones.
template <bool IN_HALVES>
inline __attribute__((always_inline)) void transpose_quarters(__m512i* a) {
    __m512i b[4];
    for (int i = 0; i < 4; i += 2) {
        b[i] = IN_HALVES ? _mm512_unpacklo_epi16(a[i], a[i + 1]) : _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = IN_HALVES ? _mm512_unpackhi_epi16(a[i], a[i + 1]) : _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        a[2 * i] = IN_HALVES ? _mm512_unpacklo_epi32(b[i], b[i + 2]) : _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[2 * i + 1] = IN_HALVES ? _mm512_unpackhi_epi32(b[i], b[i + 2]) : _mm512_unpackhi_epi64(b[i], b[i + 2]);
    }
}

// Transposes 16 lines of 16 numbers, `line(i)`, to the columns of `to`.
template <bool IN_HALVES = false, typename Line>
inline void transpose_block(Line line, uint32_t* to, int64_t to_stride) {
    __m512i a[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = (__m512i)line(i);
    for (int i = 0; i < 16; i += 4) transpose_quarters<IN_HALVES>(a + i);
    // a[4i + j] has column j of each group of four, for lines 4i to 4i + 3: quarters move like in a 4 x 4 transpose.
    for (int j = 0; j < 4; j++) {
        const __m512i even_low = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x88), odd_low = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xdd);
        const __m512i even_high = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88);
        const __m512i odd_high = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xdd);
        _mm512_storeu_si512(to + j * to_stride, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
        _mm512_storeu_si512(to + (4 + j) * to_stride, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
        _mm512_storeu_si512(to + (8 + j) * to_stride, _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
        _mm512_storeu_si512(to + (12 + j) * to_stride, _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
    }
}

#endif

// from [16][16] → the columns of `to`, by blocks of 4 x 4.
inline void transpose_16(const uint32_t (*from)[16], uint32_t* to, int64_t to_stride) {
    for (int line = 0; line < 16; line += 4)
        for (int column = 0; column < 16; column += 4) {
#ifdef __SSE2__
            __m128 a[4];
            for (int i = 0; i < 4; i++) a[i] = _mm_loadu_ps((const float*)from[line + i] + column);
            _MM_TRANSPOSE4_PS(a[0], a[1], a[2], a[3]);
            for (int i = 0; i < 4; i++) _mm_storeu_ps((float*)to + (column + i) * to_stride + line, a[i]);
#else
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) to[(column + j) * to_stride + line + i] = from[line + i][column + j];
#endif
        }
}

// from [lines][width] → to [width][lines].
inline void transpose(const uint32_t* from, int64_t lines, int64_t width, uint32_t* to) {
#ifdef __AVX512F__
    if (lines % 16 == 0 && width % 16 == 0) {
        for (int64_t line = 0; line < lines; line += 16)
            for (int64_t column = 0; column < width; column += 16)
                transpose_block([&](int i) { return _mm512_loadu_si512(from + (line + i) * width + column); },
                                to + column * lines + line, lines);
        return;
    }
#endif
    for (int64_t line = 0; line < lines; line++)
        for (int64_t column = 0; column < width; column++) to[column * lines + line] = from[line * width + column];
}
