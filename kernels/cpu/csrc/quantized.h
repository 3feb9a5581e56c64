// Layout of a quantized weight in panels of PANEL outputs, made by quantized_linear.py, and the unpacking of a panel.
//
// w = scale · (value - zero) + offset, with unsigned values. Inputs are padded to a multiple of BLOCK. A dword per
// output holds the values of four neighbouring k, a quad, in its bytes:
//   values   8 bits and float8: [panels][K/4][PANEL] quads. Else the low four bits: [panels][K/8][PANEL], quad 2i in the
//            low halves of the bytes, quad 2i + 1 in the high ones. 2 and 3 bits: the low two, [panels][K/16][PANEL],
//            bits 2q and 2q + 1 of byte j belong to k = 4q + j
//   high     3 and 5 bits: [panels][K/32][PANEL], bit q of byte j belongs to k = 4q + j.
//            6 bits: [panels][K/16][PANEL] like the two bits of values
//   table    values of the codes in 3 or 4 bits, bytes
//   scales   and offsets: [panels][groups][PANEL] floats, halves, exponents of floats (one byte each), or int8 below
//            super_scales and super_offsets, [panels][super groups][PANEL] halves. Halves are in parts of `unit`
#pragma once

#include <type_traits>

#include "matmul.h"
#include "panels.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

constexpr int HALF = 16;   // number of k that always share a scale
constexpr int QUADS = HALF / 4;

typedef uint32_t quads_t __attribute__((vector_size(sizeof(sums_t)), aligned(4)));
typedef int32_t ints_t __attribute__((vector_size(sizeof(sums_t)), aligned(4)));
typedef int16_t shorts_t __attribute__((vector_size(sizeof(sums_t)), aligned(4)));

inline sums_t floats_of_halves(const uint16_t* from) {
#if defined(__AVX512F__)
    return (sums_t)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__F16C__)
    return (sums_t)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#else
    sums_t out;
    for (int i = 0; i < WIDTH; i++) {
        uint32_t size = uint32_t(from[i] & 0x7fff) << 13;  // with an exponent that is 112 too small
        float wide;
        std::memcpy(&wide, &size, 4);
        out[i] = (from[i] & 0x8000 ? -wide : wide) * 0x1p112f;
    }
    return out;
#endif
}

inline sums_t floats_of_bytes(const int8_t* from) {
#if defined(__AVX512F__)
    return load(from);
#elif defined(__AVX2__)  // gcc 12 converts lane by lane
    return (sums_t)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#endif
    typedef int8_t bytes_t __attribute__((vector_size(WIDTH)));
    return __builtin_convertvector(load_vector<bytes_t>(from), sums_t);
}

// e4m3 without its NaN: built with an exponent that is 120 too small, where denormals of e4m3 are denormals too.
inline sums_t floats_of_float8(ints_t codes) {
    return (sums_t)((codes & 0x80) << 24 | (codes & 0x7f) << 20) * 0x1p120f;
}

inline sums_t floats_of_exponents(const uint8_t* from) {
#if defined(__AVX512F__)
    return (sums_t)_mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)from)), 23);
#elif defined(__AVX2__)
    return (sums_t)_mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from)), 23);
#endif
    typedef uint8_t bytes_t __attribute__((vector_size(WIDTH)));
    return (sums_t)(__builtin_convertvector(load_vector<bytes_t>(from), quads_t) << 23);
}

constexpr int CODES_4_BITS = -4;  // in place of a number of bits: four bits that are codes. Three bits always are

constexpr int low_bits(int bits) { return bits == 8 ? 8 : bits == 2 || bits == 3 ? 2 : 4; }
constexpr int high_bits(int bits) { return bits == CODES_4_BITS ? 0 : bits - low_bits(bits); }

// Values of four codes in each lane; `table` has the 16 values in every run of 16 bytes.
inline quads_t look_up(quads_t table, quads_t codes) {
#if defined(__AVX512BW__)
    return (quads_t)_mm512_shuffle_epi8((__m512i)table, (__m512i)codes);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return (quads_t)_mm256_shuffle_epi8((__m256i)table, (__m256i)codes);
#else
    uint8_t values[sizeof table], bytes[sizeof codes];
    std::memcpy(values, &table, sizeof table);
    std::memcpy(bytes, &codes, sizeof codes);
    for (uint8_t& byte : bytes) byte = values[byte & 15];
    return load_vector<quads_t>(bytes);
#endif
}

// Keeps prefetches of later quads behind this one's load. gcc 12 moves all of a group to its beginning, where they take
// the first-level cache's buffers for misses from loads, and spills their addresses (8 bits, four rows: 13.5 -> 11.8 ms).
__attribute__((always_inline)) inline void keep_order([[maybe_unused]] quads_t& lanes,
                                                      [[maybe_unused]] const uint32_t*& far) {
#ifdef __AVX512F__
    asm volatile("" : "+v"(lanes), "+r"(far));
#endif
}

// Quads, the values of four neighbouring k in a lane.
template <int BITS>
inline quads_t quad_of(const uint32_t* values, const uint32_t* high, int quad, int shift, quads_t table) {
    constexpr int LOW = low_bits(BITS), TOGETHER = 8 / LOW;
    quads_t low = load_vector<quads_t>(values + quad / TOGETHER * PANEL);
    if (BITS == 8) return low;
    low = (quad % TOGETHER ? low >> LOW * (quad % TOGETHER) : low) & ((1 << LOW) - 1) * 0x01010101;
    if (BITS == 3 || BITS == 5) low |= ((load_vector<quads_t>(high) >> (shift + quad)) & 0x01010101) << LOW;
    if (BITS == 3 || BITS == CODES_4_BITS) return look_up(table, low);
    if (BITS == 6) {
        const quads_t both = load_vector<quads_t>(high);
        low |= (quad < 2 ? both << (4 - 2 * quad) : both >> (2 * quad - 4)) & 0x30303030;
    }
    return low;
}

struct Header {
    sums_t scales[V], offsets[V];  // w = scale · value + offset
};

// Kinds of values, which are unpacked differently. BITS_8_HALVES: scales are halves, without offsets.
enum Kind { BITS_2, CODES_3, BITS_4, CODES_4, BITS_5, BITS_6, BITS_8, BITS_8_HALVES, FLOAT8 };
constexpr int bits_of(Kind kind) {
    constexpr int BITS[] = {2, 3, 4, CODES_4_BITS, 5, 6, 8, 8, 8};
    return BITS[kind];
}

// Unpacked form of a panel: float [K][PANEL] or pairs of bfloat16 [K/2][PANEL]. Here w = scale · lane + offset.
template <typename Scalar, Kind KIND>
struct Levels {
    static constexpr int INPUTS = 1;  // inputs of a Scalar
    sums_t scales[V], offsets[V];

    void set(const Header& h, float zero) {
        for (int v = 0; v < V; v++) {
            scales[v] = h.scales[v];
            offsets[v] = fma(h.scales[v], -zero - sums_t{}, h.offsets[v]);
        }
    }
};

#ifdef __AVX512BF16__
// A code becomes the low bits of a float's mantissa, BASE + code, so that no conversion is needed. It goes to byte 2,
// but eight bits go to byte 1, where only products with halves are exact, and others are converted. Lanes 2n and 2n + 1
// are neighbouring inputs of one output, so that weights rounded to bfloat16 are in their places.
template <Kind KIND>
struct Levels<pair, KIND> {
    static constexpr int INPUTS = 2;
    static constexpr bool IS_CONVERTED = KIND == BITS_8 || KIND == FLOAT8 || KIND == CODES_3 || KIND == CODES_4;
    static constexpr int BYTE = IS_CONVERTED ? 0 : KIND == BITS_8_HALVES ? 1 : 2;
    static constexpr float BASE = IS_CONVERTED ? 0 : KIND == BITS_8_HALVES ? 0x1p15f : 0x1p7f;
    sums_t scales[V][2], offsets[V][2];  // for outputs 0 to 7 and 8 to 15

    void set(const Header& h, float zero) {
        const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
        for (int v = 0; v < V; v++) {
            const sums_t offset = fma(h.scales[v], -(zero + BASE) - sums_t{}, h.offsets[v]);
            for (int i = 0; i < 2; i++) {
                const __m512i from = _mm512_add_epi32(twice, _mm512_set1_epi32(8 * i));
                scales[v][i] = (sums_t)_mm512_permutexvar_ps(from, (__m512)h.scales[v]);
                offsets[v][i] = (sums_t)_mm512_permutexvar_ps(from, (__m512)offset);
            }
        }
    }

    // Weights of inputs j and j + 1 of a quad, for outputs 8i to 8i + 7 of the V'th part.
    __attribute__((always_inline)) inline __m512 floats(quads_t quads, int v, int i, int j) const {
        const __m512i base = (__m512i)(BASE - sums_t{});
#ifdef __AVX512VBMI__
        alignas(64) static constexpr Places places;
        const __m512i placed = _mm512_mask_permutexvar_epi8(
            base, 0x1111111111111111u << BYTE, _mm512_load_si512(places.of[i][j / 2]), (__m512i)quads);
#else
        const __m512i output = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
        const __m512i shift = _mm512_set4_epi32(8 * j + 8, 8 * j, 8 * j + 8, 8 * j);
        const __m512i of_outputs = _mm512_permutexvar_epi32(_mm512_add_epi32(output, _mm512_set1_epi32(8 * i)), (__m512i)quads);
        const __m512i placed = (__m512i)(((quads_t)_mm512_srlv_epi32(of_outputs, shift) & 255) << 8 * BYTE) | base;
#endif
        const sums_t values = KIND == FLOAT8 ? floats_of_float8((ints_t)placed)
                              : IS_CONVERTED ? (sums_t)_mm512_cvtepi32_ps(placed) : (sums_t)placed;
        return (__m512)fma(values, scales[v][i], offsets[v][i]);
    }

   private:
    // Source byte among the quads' bytes, for each byte of the lanes.
    struct Places {
        uint8_t of[2][2][64] = {};
        constexpr Places() {
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 4; j++)
                    for (int n = 0; n < 8; n++) of[i][j / 2][8 * n + j % 2 * 4 + BYTE] = uint8_t((8 * i + n) * 4 + j);
        }
    };
};
#endif

struct QuantizedPanels {
    const uint8_t *values, *high;
    const void *scales, *offsets;
    const uint16_t *super_scales, *super_offsets;
    int64_t bits, zero, group, super_group, scale_bytes, is_float8, has_table;
    float unit;
    quads_t table = {};
    int64_t num_inputs, num_groups, num_super_groups;
    // Distance in bytes from the unpacked values to the prefetched ones: to the next panel, or 0 if that is fetched
    // later, while many rows use this panel and memory would be idle (8 rows in 8 bits: 1.69 -> 1.24 ms).
    int64_t ahead = 0;

    template <typename Arguments>
    explicit QuantizedPanels(const Arguments& a)
        : values(a.values), high(a.high), scales(a.scales), offsets(a.offsets), super_scales(a.super_scales),
          super_offsets(a.super_offsets), bits(a.bits), zero(a.zero), group(a.group), super_group(a.super_group),
          scale_bytes(a.scale_bytes), is_float8(a.is_float8), has_table(a.table != nullptr), unit(a.unit),
          num_inputs((a.num_inputs + BLOCK - 1) / BLOCK * BLOCK), num_groups((num_inputs + group - 1) / group),
          num_super_groups((num_inputs + super_group - 1) / super_group) {
        for (size_t at = 0; has_table && at < sizeof table; at += 16) std::memcpy((char*)&table + at, a.table, 16);
    }

    int64_t num_bytes() const { return num_inputs * PANEL / 8 * low_bits(int(bits)); }  // bytes of a panel's values
    const uint8_t* panel(int64_t number) const { return values + number * num_bytes(); }

    // Scales and offsets of a panel's group; the offsets do not include the zero yet.
    Header header(int64_t number, int64_t index) const {
        Header out;
        for (int v = 0; v < V; v++) {
            out.scales[v] = level(scales, super_scales, number, index, v);
            out.offsets[v] = offsets ? level(offsets, super_offsets, number, index, v) : sums_t{};
        }
        return out;
    }

    // Headers of a panel for inputs in groups of `size`, which divides the weight's: [groups][scales, offsets][PANEL].
    // Without offsets these are not written. The next panel's are prefetched.
    __attribute__((noinline)) void headers(int64_t number, int64_t size, float* to) const {
        const int64_t parts = group < num_inputs ? group / size : (num_inputs + size - 1) / size;
        levels(scales, super_scales, number, parts, to);
        if (offsets) levels(offsets, super_offsets, number, parts, to + PANEL);
    }

    // Unpacks inputs [begin, end) of a panel, whole HALFs, to `to`: floats or pairs.
    template <typename Scalar>
    void take(int64_t number, int64_t begin, int64_t end, Scalar* to) const {
        by_kind([&](auto kind) { take<decltype(kind)::value>(number, begin, end, to); });
    }

    // Calls f(kind of the values, as a type).
    template <typename Function>
    void by_kind(Function f) const {
        if (is_float8) f(std::integral_constant<Kind, FLOAT8>());
        else if (bits == 2) f(std::integral_constant<Kind, BITS_2>());
        else if (bits == 3) f(std::integral_constant<Kind, CODES_3>());
        else if (has_table) f(std::integral_constant<Kind, CODES_4>());
        else if (bits == 8 && scale_bytes == 2 && !offsets) f(std::integral_constant<Kind, BITS_8_HALVES>());
        else if (bits == 8) f(std::integral_constant<Kind, BITS_8>());
        else if (bits == 6) f(std::integral_constant<Kind, BITS_6>());
        else if (bits == 5) f(std::integral_constant<Kind, BITS_5>());
        else f(std::integral_constant<Kind, BITS_4>());
    }

    // Calls f(v, k, lanes) for inputs [begin, end) of a panel, whole HALFs: lanes are the weights of the v'th part of
    // its outputs, for k alone as floats or for k and k + 1 as pairs.
    template <typename Scalar, Kind KIND, typename Function>
    __attribute__((always_inline)) inline void each(int64_t number, int64_t begin, int64_t end, Function f) const {
        int64_t index = begin / group, next = begin;
        Levels<Scalar, KIND> levels;
        for (int64_t k = begin; k < end; k += HALF) {
            if (k == next) {
                levels.set(header(number, index++), float(zero));
                next = index * group;
            }
            each_of_half(number, k, levels, f);
        }
    }

#ifdef __AVX512BF16__
    // Unpacks inputs [begin, end) of a panel as pairs, to `to`.
    const uint32_t* pairs(int64_t number, int64_t begin, int64_t end, uint32_t* to) const {
        take(number, begin, end, to);
        return to;
    }
#endif

    // Quads of a panel, [K/4][PANEL]: unpacked to `to`, unless they are stored in this form.
    const uint32_t* quads(int64_t number, uint32_t* to) const {
        if (bits == 8) return (const uint32_t*)values + number * num_inputs / 4 * PANEL;
        by_kind([&](auto kind) { take_quads<bits_of(decltype(kind)::value)>(number, to); });
        return to;
    }

    // Unpacks inputs [begin, end) of a panel, whole HALFs, and prefetches as many behind them: with LEVELS 1 quads
    // [K/4][PANEL], with 2 values less the weight's zero, int16 [K/2][PANEL][2].
    template <int LEVELS>
    void take_integers(int64_t number, int64_t begin, int64_t end, uint32_t* to) const {
        by_kind([&](auto kind) { take_integers<LEVELS, bits_of(decltype(kind)::value)>(number, begin, end, to); });
    }

    // Calls f(quad, values of the quad [V]) for the HALF of a panel at k, and prefetches what is `distance` ahead: into
    // the second-level cache, or with LOCALITY 3 also and with 0 only into the first. IN_ORDER: see `keep_order`.
    template <int BITS, int LOCALITY = 2, bool IN_ORDER = false, typename Function>
    __attribute__((always_inline)) inline void each_quad(int64_t number, int64_t k, int64_t distance,
                                                         Function f) const {
        constexpr int LOW = low_bits(BITS), HIGH = high_bits(BITS), TOGETHER = 8 / LOW;
        const int64_t at = number * num_inputs + k;
        const uint32_t* low = (const uint32_t*)values + at * (PANEL * LOW / 32);
        const uint32_t* far = (const uint32_t*)((const char*)low + distance);
        const uint32_t* up = (const uint32_t*)high;
        if (HIGH == 1) up += (at & -32) * (PANEL / 32);
        if (HIGH == 2) up += at * (PANEL / 16);
        const int shift = k % 32 ? QUADS : 0;
#pragma GCC unroll 4
        for (int quad = 0; quad < QUADS; quad++) {
            quads_t lanes[V];
            for (int v = 0; v < V; v++) {
                const bool is_line = v * WIDTH % 16 == 0;  // begins a line of the cache
                if (is_line && quad % TOGETHER == 0)
                    fetch<LOCALITY>(far + quad / TOGETHER * PANEL + v * WIDTH, 0);
                if (is_line && HIGH && quad == 0 && (HIGH == 2 || !shift))
                    fetch<LOCALITY>(up + v * WIDTH, distance * HIGH / LOW);
                lanes[v] = quad_of<BITS>(low + v * WIDTH, up + v * WIDTH, quad, shift, table);
            }
            if (IN_ORDER) keep_order(lanes[0], far);
            f(quad, lanes);
        }
    }

   private:
    // Inlined early, because gcc 12 drops calls of a function that only prefetches.
    template <int LOCALITY = 2>
    __attribute__((always_inline)) inline void fetch(const uint32_t* here, int64_t distance) const {
        __builtin_prefetch((const char*)here + distance, 0, LOCALITY);
    }

    // Scales or offsets of a panel, each `parts` times.
    void levels(const void* lower, const uint16_t* upper, int64_t number, int64_t parts, float* to) const {
        const int64_t num_below = super_group / group, line = PANEL * scale_bytes;
        const char* here = (const char*)lower + number * num_groups * line;
        const char* next = here + num_groups * line;
        if (upper) upper += number * num_super_groups * PANEL;
        int64_t left = 0;
        sums_t above[V];
        for (int64_t index = 0; index < num_groups; index++, here += line) {
            __builtin_prefetch(next + index * line, 0, 2);
            if (scale_bytes == 4) __builtin_prefetch(next + index * line + 64, 0, 2);
            if (upper && left-- == 0) {
                for (int v = 0; v < V; v++) above[v] = floats_of_halves(upper + v * WIDTH) * unit;
                upper += PANEL;
                left = num_below - 1;
            }
            for (int v = 0; v < V; v++) {
                sums_t level;
                if (scale_bytes == 4) level = load_vector<sums_t>((const float*)here + v * WIDTH);
                else if (scale_bytes == 2) level = floats_of_halves((const uint16_t*)here + v * WIDTH) * unit;
                else if (upper) level = floats_of_bytes((const int8_t*)here + v * WIDTH) * above[v];
                else level = floats_of_exponents((const uint8_t*)here + v * WIDTH);
                for (int64_t part = 0; part < parts; part++)
                    std::memcpy(to + part * 2 * PANEL + v * WIDTH, &level, sizeof level);
            }
            to += parts * 2 * PANEL;
        }
    }

    sums_t level(const void* lower, const uint16_t* upper, int64_t number, int64_t index, int v) const {
        const int64_t at = (number * num_groups + index) * PANEL + v * WIDTH;
        if (scale_bytes == 4) return load_vector<sums_t>((const float*)lower + at);
        if (scale_bytes == 2) return floats_of_halves((const uint16_t*)lower + at) * unit;
        if (!upper) return floats_of_exponents((const uint8_t*)lower + at);
        const int64_t above = (number * num_super_groups + index * group / super_group) * PANEL + v * WIDTH;
        return floats_of_bytes((const int8_t*)lower + at) * (floats_of_halves(upper + above) * unit);
    }

#ifdef __AVX512F__
    // Calls f(v, quad, the quad's value of j) for the HALF at k of a panel of nibbles. A lookup reads only four bits,
    // so no masking or conversion is needed.
    template <Kind KIND, typename Function>
    __attribute__((always_inline)) inline void each_nibble(int64_t number, int64_t k, Function f) const {
        const __m512 numbers =
            KIND == CODES_4 ? _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm512_castsi512_si128((__m512i)table)))
                            : _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        const uint32_t* low = (const uint32_t*)values + (number * num_inputs + k) / 8 * PANEL;
        for (int quad = 0; quad < QUADS; quad++)
            for (int v = 0; v < V; v++) {
                const quads_t both = load_vector<quads_t>(low + quad / 2 * PANEL + v * WIDTH);
                if (quad % 2 == 0) fetch(low + quad / 2 * PANEL + v * WIDTH, ahead);
                f(v, quad, [&](int j) __attribute__((always_inline)) {
                    return (sums_t)_mm512_permutexvar_ps((__m512i)(both >> (8 * j + quad % 2 * 4)), numbers);
                });
            }
    }
#endif

    template <Kind KIND, typename Function>
    __attribute__((always_inline)) inline void each_of_half(int64_t number, int64_t k, const Levels<float, KIND>& levels,
                                                            Function f) const {
        auto put = [&](int v, int quad, auto value_of) __attribute__((always_inline)) {
            for (int j = 0; j < 4; j++) f(v, k + 4 * quad + j, fma(value_of(j), levels.scales[v], levels.offsets[v]));
        };
#ifdef __AVX512F__
        if constexpr (KIND == BITS_4 || KIND == CODES_4) return each_nibble<KIND>(number, k, put);
#endif
        const auto put_quad = [&](int quad, const quads_t(&lanes)[V]) __attribute__((always_inline)) {
            for (int v = 0; v < V; v++)
                put(v, quad, [quads = lanes[v]](int j) __attribute__((always_inline)) {
                    const ints_t code = (ints_t)(j < 3 ? (quads >> 8 * j) & 255 : quads >> 24);
                    return KIND == FLOAT8 ? floats_of_float8(code) : __builtin_convertvector(code, sums_t);
                });
        };
        each_quad<bits_of(KIND)>(number, k, ahead, put_quad);
    }

#ifdef __AVX512BF16__
    template <Kind KIND, typename Function>
    __attribute__((always_inline)) inline void each_of_half(int64_t number, int64_t k, const Levels<pair, KIND>& levels,
                                                            Function f) const {
        const auto put_quad = [&](int quad, const quads_t(&lanes)[V]) __attribute__((always_inline)) {
            for (int v = 0; v < V; v++)
                for (int j = 0; j < 4; j += 2)
                    f(v, k + 4 * quad + j,
                      (uvec)_mm512_cvtne2ps_pbh(levels.floats(lanes[v], v, 1, j), levels.floats(lanes[v], v, 0, j)));
        };
        each_quad<bits_of(KIND)>(number, k, ahead, put_quad);
    }
#endif

    template <Kind KIND, typename Scalar>
    __attribute__((noinline)) void take(int64_t number, int64_t begin, int64_t end, Scalar* to) const {
        each<Scalar, KIND>(number, begin, end, [&](int v, int64_t k, auto lanes) __attribute__((always_inline)) {
            std::memcpy(to + (k - begin) / Levels<Scalar, KIND>::INPUTS * PANEL + v * WIDTH, &lanes, sizeof lanes);
        });
    }

    template <int BITS>
    void take_quads(int64_t number, uint32_t* to) const {
        for (int64_t k = 0; k < num_inputs; k += HALF, to += QUADS * PANEL)
            each_quad<BITS>(number, k, ahead, [&](int quad, const quads_t(&lanes)[V]) __attribute__((always_inline)) {
                for (int v = 0; v < V; v++) std::memcpy(to + quad * PANEL + v * WIDTH, &lanes[v], sizeof lanes[v]);
            });
    }

    template <int LEVELS, int BITS>
    __attribute__((noinline)) void take_integers(int64_t number, int64_t begin, int64_t end, uint32_t* to) const {
        const int64_t distance = (end - begin) * PANEL * low_bits(BITS) / 8;
        const int16_t less = int16_t(zero);
        for (int64_t k = begin; k < end; k += HALF)
            each_quad<BITS>(number, k, distance, [&](int, const quads_t(&lanes)[V]) __attribute__((always_inline)) {
#pragma GCC unroll 2
                for (int level = 0; level < LEVELS; level++, to += PANEL)
                    for (int v = 0; v < V; v++) {
                        quads_t four = lanes[v];
                        if (LEVELS == 2) {
                            const quads_t two = four >> 16 * level;
                            four = (quads_t)((shorts_t)((two & 0xff) | (two & 0xff00) << 8) - less);
                        }
                        std::memcpy(to + v * WIDTH, &four, sizeof four);
                    }
            });
    }
};
