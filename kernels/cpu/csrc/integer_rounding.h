// Rounding of numbers to integers with a common scale: x ≈ value · scale, the largest is ±largest_integer, to nearest
// even. If a number is not finite, the scale is NaN.
#pragma once

#include <cmath>

#include "simd.h"

// `across` of 16 vectors at once: lane i is what is left of x[i].
#ifdef __AVX512F__
template <typename Join>
inline ivec across_each(const ivec x[16], Join join) {
    ivec y[8];
    for (int i = 0; i < 8; i++) {
        const __m512i a = (__m512i)x[2 * i], b = (__m512i)x[2 * i + 1];
        y[i] = join((ivec)_mm512_unpacklo_epi32(a, b), (ivec)_mm512_unpackhi_epi32(a, b));
    }
    for (int i = 0; i < 4; i++) {
        const __m512i a = (__m512i)y[2 * i], b = (__m512i)y[2 * i + 1];
        y[i] = join((ivec)_mm512_unpacklo_epi64(a, b), (ivec)_mm512_unpackhi_epi64(a, b));
    }
    for (int num_left = 2; num_left; num_left--)
        for (int i = 0; i < num_left; i++) {
            const __m512i a = (__m512i)y[2 * i], b = (__m512i)y[2 * i + 1];
            y[i] = join((ivec)_mm512_shuffle_i32x4(a, b, 0x88), (ivec)_mm512_shuffle_i32x4(a, b, 0xdd));
        }
    return y[0];
}
#endif

class IntegerRounding {
   public:
    float scale;

    IntegerRounding(float scale, float up) : scale(scale), up(up) {}

    // `at(k)`: numbers of [begin, end) from k on, then zeros.
    template <typename At>
    IntegerRounding(At&& at, int64_t begin, int64_t end, float largest_integer = 127) {
        ivec most = {};
        for (int64_t k = begin; k < end; k += LANES) {
            const ivec size = (ivec)at(k) & INT32_MAX;  // larger for NaN than for infinity
            most = larger(size, most);
        }
        levels(across(most, [](auto a, auto b) { return a > b ? a : b; }), largest_integer, scale, up);
    }

    // Scale and quotient of numbers, or a vector of them, by the bits of the largest size.
    template <typename Bits, typename Float>
    static void levels(Bits largest, float largest_integer, Float& scale, Float& up) {
        Float size;
        std::memcpy(&size, &largest, sizeof size);
        const auto is_finite = largest < 0x7f800000;
        scale = is_finite ? size * (1 / largest_integer) : Float{} + NAN;
        up = is_finite & (size > 1e-33f)  // for smaller sizes the quotient may be infinite
                 ? largest_integer / size : Float{};
    }

    // Adding 1.5 · 2^23 rounds to nearest and leaves the integer in the low bits.
    ivec operator()(vec x) const { return (ivec)(x * up + 12582912.0f) - 0x4b400000; }

   private:
    float up;
};

inline void store_bytes(int8_t* to, ivec x) {
#ifdef __AVX512F__  // gcc 12 converts lane by lane
    _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8((__m512i)x));
#else
    store_narrow<int8_t>(to, x);
#endif
}

inline void store_shorts(int16_t* to, ivec x) {
#ifdef __AVX512F__
    _mm256_storeu_si256((__m256i*)to, _mm512_cvtepi32_epi16((__m512i)x));
#else
    store_narrow<int16_t>(to, x);
#endif
}
