// A quantized weight in panels of PANEL outputs, as quantized_linear.py lays it out, and how a panel is taken apart.
//
// w = scale · (value - zero) + offset, values without a sign. Inputs are padded to a multiple of BLOCK. A dword per
// output holds values of four neighbouring k, a quad, in its bytes:
//   values   8 bits and float8: [panels][K/4][PANEL] quads. Else the low four bits: [panels][K/8][PANEL], quad 2i in the
//            low halves of the bytes, quad 2i + 1 in the high ones
//   high     5 bits: [panels][K/32][PANEL], bit q of byte j belongs to k = 4q + j.
//            6 bits: [panels][K/16][PANEL], bits 2q and 2q + 1 of byte j do
//   scales   and offsets: [panels][groups][PANEL] floats, halves, or int8 below super_scales and super_offsets,
//            [panels][super groups][PANEL] halves
#pragma once

#include <type_traits>

#include "panels.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

constexpr int HALF = 16;   // of k: all of them share a scale
constexpr int QUADS = HALF / 4;

typedef uint32_t quads_t __attribute__((vector_size(sizeof(sums_t)), aligned(4)));
typedef int32_t ints_t __attribute__((vector_size(sizeof(sums_t)), aligned(4)));

inline sums_t floats_of_halves(const uint16_t* from) {
#if defined(__AVX512F__)
    return (sums_t)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__F16C__)
    return (sums_t)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#else
    sums_t out;
    for (int i = 0; i < WIDTH; i++) {
        uint32_t size = uint32_t(from[i] & 0x7fff) << 13;  // under an exponent that is 112 too small
        float wide;
        std::memcpy(&wide, &size, 4);
        out[i] = (from[i] & 0x8000 ? -wide : wide) * 0x1p112f;
    }
    return out;
#endif
}

inline sums_t floats_of_bytes(const int8_t* from) {
#ifdef __AVX512F__  // gcc 12 converts one after the other
    return (sums_t)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
#endif
    typedef int8_t bytes_t __attribute__((vector_size(WIDTH)));
    return __builtin_convertvector(load_vector<bytes_t>(from), sums_t);
}

// e4m3 without its NaN: under an exponent that is 120 too small, where its denormals are denormals too.
inline sums_t floats_of_float8(ints_t codes) {
    return (sums_t)((codes & 0x80) << 24 | (codes & 0x7f) << 20) * 0x1p120f;
}

// Values of four neighbouring k in each lane.
template <int BITS>
inline quads_t quad_of(const uint32_t* values, const uint32_t* high, int quad, int shift) {
    quads_t low = load_vector<quads_t>(values + (BITS == 8 ? quad : quad / 2) * PANEL);
    if (BITS == 8) return low;
    low = (quad % 2 ? low >> 4 : low) & 0x0f0f0f0f;
    if (BITS == 5) low |= ((load_vector<quads_t>(high) >> (shift + quad)) & 0x01010101) << 4;
    if (BITS == 6) low |= ((load_vector<quads_t>(high) >> 2 * quad) & 0x03030303) << 4;
    return low;
}

struct Header {
    sums_t scales[V], offsets[V];  // w = scale · value + offset
};

// What a panel is taken apart to: float [K][PANEL] or pairs of bfloat16 [K/2][PANEL]. `values` are four neighbouring k.
inline void put(float* to, const sums_t values[4]) {
    for (int j = 0; j < 4; j++) std::memcpy(to + j * PANEL, values + j, sizeof values[j]);
}
#ifdef __AVX512BF16__
inline void put(uint32_t* to, const sums_t values[4]) {
    const __m512i side_by_side = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                                  22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int i = 0; i < 2; i++) {
        __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)values[2 * i + 1], (__m512)values[2 * i]);
        _mm512_store_si512(to + i * PANEL, _mm512_permutexvar_epi16(side_by_side, both));
    }
}
#endif

struct QuantizedPanels {
    const uint8_t *values, *high;
    const void *scales, *offsets;
    const uint16_t *super_scales, *super_offsets;
    int64_t bits, zero, group, super_group, scale_bytes, is_float8;
    int64_t num_inputs, num_groups, num_super_groups;

    template <typename Arguments>
    explicit QuantizedPanels(const Arguments& a)
        : values(a.values), high(a.high), scales(a.scales), offsets(a.offsets), super_scales(a.super_scales),
          super_offsets(a.super_offsets), bits(a.bits), zero(a.zero), group(a.group), super_group(a.super_group),
          scale_bytes(a.scale_bytes), is_float8(a.is_float8), num_inputs((a.num_inputs + BLOCK - 1) / BLOCK * BLOCK),
          num_groups((num_inputs + group - 1) / group), num_super_groups((num_inputs + super_group - 1) / super_group) {}

    // Scales and offsets of a panel's group, the zero not yet in the offsets.
    Header header(int64_t number, int64_t index) const {
        Header out;
        for (int v = 0; v < V; v++) {
            out.scales[v] = level(scales, super_scales, number, index, v);
            out.offsets[v] = offsets ? level(offsets, super_offsets, number, index, v) : sums_t{};
        }
        return out;
    }

    // Inputs [begin, end) of a panel, whole HALFs, to `to`: floats or pairs.
    template <typename Scalar>
    void take(int64_t number, int64_t begin, int64_t end, Scalar* to) const {
        if (is_float8) take<8, true>(number, begin, end, to);
        else if (bits == 8) take<8, false>(number, begin, end, to);
        else if (bits == 6) take<6, false>(number, begin, end, to);
        else if (bits == 5) take<5, false>(number, begin, end, to);
        else take<4, false>(number, begin, end, to);
    }

#ifdef __AVX512BF16__
    // Inputs [begin, end) of a panel as pairs: at `to`.
    const uint32_t* pairs(int64_t number, int64_t begin, int64_t end, uint32_t* to) const {
        take(number, begin, end, to);
        return to;
    }
#endif

    // Where the quads of a panel are, [K/4][PANEL]: at `to` then, unless they are stored so.
    const uint32_t* quads(int64_t number, uint32_t* to) const {
        if (bits == 8) return (const uint32_t*)values + number * num_inputs / 4 * PANEL;
        if (bits == 6) take_quads<6>(number, to);
        else if (bits == 5) take_quads<5>(number, to);
        else take_quads<4>(number, to);
        return to;
    }

    // f(v, quad, values of the quad) for the HALF of a panel at k.
    template <int BITS, typename Function>
    __attribute__((always_inline)) inline void each_quad(int64_t number, int64_t k, Function f) const {
        const uint32_t* low = (const uint32_t*)values + (number * num_inputs + k) / (BITS == 8 ? 4 : 8) * PANEL;
        const uint32_t* up = (const uint32_t*)high;
        if (BITS == 5) up += (number * num_inputs + k) / 32 * PANEL;
        if (BITS == 6) up += (number * num_inputs + k) / 16 * PANEL;
        const int shift = k % 32 ? QUADS : 0;
        for (int quad = 0; quad < QUADS; quad++)
            for (int v = 0; v < V; v++) f(v, quad, quad_of<BITS>(low + v * WIDTH, up + v * WIDTH, quad, shift));
    }

   private:
    sums_t level(const void* lower, const uint16_t* upper, int64_t number, int64_t index, int v) const {
        const int64_t at = (number * num_groups + index) * PANEL + v * WIDTH;
        if (scale_bytes == 4) return load_vector<sums_t>((const float*)lower + at);
        if (scale_bytes == 2) return floats_of_halves((const uint16_t*)lower + at);
        const int64_t above = (number * num_super_groups + index * group / super_group) * PANEL + v * WIDTH;
        return floats_of_bytes((const int8_t*)lower + at) * floats_of_halves(upper + above);
    }

#ifdef __AVX512F__
    // f(v, quad, its value of j) for the HALF at k of a panel of nibbles. A lookup sees four bits alone, so that nothing
    // is masked or converted.
    template <typename Function>
    __attribute__((always_inline)) inline void each_nibble(int64_t number, int64_t k, Function f) const {
        const __m512 numbers = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        const uint32_t* low = (const uint32_t*)values + (number * num_inputs + k) / 8 * PANEL;
        for (int quad = 0; quad < QUADS; quad++)
            for (int v = 0; v < V; v++) {
                const quads_t both = load_vector<quads_t>(low + quad / 2 * PANEL + v * WIDTH);
                f(v, quad, [&](int j) __attribute__((always_inline)) {
                    return (sums_t)_mm512_permutexvar_ps((__m512i)(both >> (8 * j + quad % 2 * 4)), numbers);
                });
            }
    }
#endif

    template <int BITS, bool FLOAT8, typename Scalar>
    __attribute__((noinline)) void take(int64_t number, int64_t begin, int64_t end, Scalar* to) const {
        int64_t index = begin / group, next = begin;
        Header h;
        for (int64_t k = begin; k < end; k += HALF, to += HALF / PER_SCALAR<Scalar> * PANEL) {
            if (k == next) {
                h = header(number, index++);
                next = index * group;
                for (int v = 0; v < V; v++) h.offsets[v] -= h.scales[v] * float(zero);
            }
            auto take_quad = [&](int v, int quad, auto value_of) __attribute__((always_inline)) {
                sums_t four[4];
                for (int j = 0; j < 4; j++) four[j] = value_of(j) * h.scales[v] + h.offsets[v];
                put(to + quad * 4 / PER_SCALAR<Scalar> * PANEL + v * WIDTH, four);
            };
#ifdef __AVX512F__
            if constexpr (BITS == 4) {
                each_nibble(number, k, take_quad);
                continue;
            }
#endif
            each_quad<BITS>(number, k, [&](int v, int quad, quads_t codes) __attribute__((always_inline)) {
                take_quad(v, quad, [&](int j) __attribute__((always_inline)) {
                    const ints_t code = (ints_t)(j < 3 ? (codes >> 8 * j) & 255 : codes >> 24);
                    return FLOAT8 ? floats_of_float8(code) : __builtin_convertvector(code, sums_t);
                });
            });
        }
    }

    template <int BITS>
    void take_quads(int64_t number, uint32_t* to) const {
        for (int64_t k = 0; k < num_inputs; k += HALF, to += QUADS * PANEL)
            each_quad<BITS>(number, k, [&](int v, int quad, quads_t codes) __attribute__((always_inline)) {
                std::memcpy(to + quad * PANEL + v * WIDTH, &codes, sizeof codes);
            });
    }

    template <typename Scalar>
    static constexpr int PER_SCALAR = std::is_same<Scalar, float>::value ? 1 : 2;  // k in one
};
