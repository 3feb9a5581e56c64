// Rows rounded to int8, and their products with the values of quantized weights: integers within a group of inputs, so
// exact there, then floats, group after group.
#pragma once

#include <cmath>

#include "quantized.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

// x [T][K] in groups: int8, the largest of a group ±127, its scale, and the sum of the group.
class Int8Rows {
   public:
    int64_t num_inputs, num_groups, group;
    int8_t* values;   // [T][inputs]
    float* scales;    // [T][groups]
    int32_t* sums;    // [T][groups]

    template <typename T>
    Int8Rows(const T* x, int64_t num_rows, int64_t width, int64_t padded, int64_t group, const Team& team)
        : num_inputs(padded), num_groups((padded + group - 1) / group), group(group) {
        scales = (float*)team.share(num_rows * (num_groups * 8 + padded));
        sums = (int32_t*)(scales + num_rows * num_groups);
        values = (int8_t*)(sums + num_rows * num_groups);
        team.each(num_rows * num_groups, [&](int64_t item) {
            const int64_t row = item / num_groups, k = item % num_groups * group, end = k + group < padded ? k + group : padded;
            round(x + row * width, k, end, width, item, row * padded);
        });
        team.barrier();
    }

   private:
    template <typename T>
    static vec at(const T* x, int64_t k, int64_t width) {
        if (k + LANES <= width) return load(x + k);
        vec out = {};
        for (int64_t i = k; i < width; i++) out[i - k] = to_float(x[i]);
        return out;
    }

    template <typename T>
    void round(const T* x, int64_t begin, int64_t end, int64_t width, int64_t index, int64_t to) {
        typedef int8_t bytes_t __attribute__((vector_size(LANES)));
        ivec most = {}, sum = {};
        for (int64_t k = begin; k < end; k += LANES) {
            const ivec size = (ivec)at(x, k, width) & INT32_MAX;  // a NaN's is above infinity's
            most = size > most ? size : most;
        }
        int32_t largest = 0;
        for (int i = 0; i < LANES; i++) largest = most[i] > largest ? most[i] : largest;
        float size;
        std::memcpy(&size, &largest, 4);
        const bool is_finite = largest < 0x7f800000;
        scales[index] = is_finite ? size * (1.0f / 127) : NAN;
        const float up = is_finite && size > 1e-35f ? 127 / size : 0;
        for (int64_t k = begin; k < end; k += LANES) {
            // Adding 1.5 · 2^23 rounds to nearest, and the integer stands in the low bits.
            const ivec rounded = (ivec)(at(x, k, width) * up + 12582912.0f) - 0x4b400000;
            const bytes_t bytes = __builtin_convertvector(rounded, bytes_t);
            std::memcpy(&values[to + k], &bytes, sizeof bytes);
            sum += __builtin_convertvector(bytes, ivec);
        }
        int32_t total = 0;
        for (int i = 0; i < LANES; i++) total += sum[i];
        sums[index] = total;
    }
};

// What `dot` takes off each value, because of what its multiplication can hold.
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
constexpr int DOT_ZERO = 128;
#else
constexpr int DOT_ZERO = 0;
#endif

// sum + Σ (value - DOT_ZERO) · x over the four of each lane.
inline ints_t dot(ints_t sum, quads_t values, int32_t x) {
#if defined(__AVX512VNNI__)
    return (ints_t)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)values, _mm512_set1_epi32(x));
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
    return (ints_t)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)values, _mm256_set1_epi32(x));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    // Pairs are added up in 16 bits: 2 · 128 · 127 fits, 2 · 255 · 127 would not.
    const __m256i w = (__m256i)(values ^ 0x80808080);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(_mm256_set1_epi32(x), w));
    return sum + (ints_t)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
    for (int j = 0; j < 4; j++) sum += (ints_t)((values >> 8 * j) & 255) * int32_t(int8_t(x >> 8 * j));
    return sum;
#endif
}

template <typename T>
struct Int8Panels {
    static constexpr int MANY = V == 2 ? 6 : 2;  // rows whose sums, of integers and of floats, fit the registers
    const Int8Rows& x;
    const float* headers;         // [panels][groups of x][scales, offsets][PANEL]
    const uint32_t* quads[SIDE];  // [K/4][PANEL] of each panel
    const T* bias;
    T* out;
    int64_t num_outputs, out_row, first, zero;
    bool has_offsets;

    // M rows from `row` against P panels from `number`.
    template <int M, int P>
    void multiply(int64_t row, int64_t number, Prefetch) const {
        const int64_t at = number - first, stride = x.num_groups * 2 * PANEL;
        sums_t totals[M][P * V] = {};
        for (int64_t i = 0; i < x.num_groups; i++) {
            ints_t sums[M][P * V];
            const int64_t begin = i * x.group / 4, end = (i + 1) * x.group < x.num_inputs ? begin + x.group / 4 : x.num_inputs / 4;
            add<M, P>(row, at, i, begin, end, sums);
            for (int v = 0; v < P * V; v++) {
                const float* header = headers + (at + v / V) * stride + i * 2 * PANEL + v % V * WIDTH;
                const sums_t scale = load_vector<sums_t>(header), offset = load_vector<sums_t>(header + PANEL);
                for (int m = 0; m < M; m++) {
                    const int64_t of = (row + m) * x.num_groups + i;
                    totals[m][v] += __builtin_convertvector(sums[m][v], sums_t) * x.scales[of] * scale;
                    if (has_offsets) totals[m][v] += offset * (x.scales[of] * float(x.sums[of]));
                }
            }
        }
        for (int m = 0; m < M; m++)
            for (int p = 0; p < P; p++)
                write(out + (row + m) * out_row, bias, num_outputs, (number + p) * PANEL, (const float*)(totals[m] + p * V));
    }

   private:
    template <int M, int P>
    __attribute__((always_inline)) inline void add(int64_t row, int64_t at, int64_t group, int64_t begin, int64_t end,
                                                   ints_t sums[M][P * V]) const {
        const int8_t* rows = x.values + row * x.num_inputs;
        for (int m = 0; m < M; m++)
            for (int v = 0; v < P * V; v++)
                sums[m][v] = ints_t{} + int32_t(DOT_ZERO - zero) * x.sums[(row + m) * x.num_groups + group];
        for (int64_t quad = begin; quad < end; quad++) {
            quads_t lanes[P * V];
            for (int v = 0; v < P * V; v++) lanes[v] = load_vector<quads_t>(quads[at + v / V] + quad * PANEL + v % V * WIDTH);
            for (int m = 0; m < M; m++) {
                int32_t four;
                std::memcpy(&four, rows + m * x.num_inputs + quad * 4, 4);
                for (int v = 0; v < P * V; v++) sums[m][v] = dot(sums[m][v], lanes[v], four);
            }
        }
    }
};
