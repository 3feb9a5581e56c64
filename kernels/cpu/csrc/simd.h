// Vectors of 16 numbers for the CPU's loops: the compiler's vector types, or several of them (wide.h), so one source
// serves AVX2, AVX-512 and NEON.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#ifdef __AVX2__
#include <immintrin.h>
#endif

constexpr int LANES = 16;
#ifdef __AVX512F__
#define SPLITFUSE_INLINE inline
typedef float vec __attribute__((vector_size(LANES * 4), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4), aligned(4)));
typedef uint32_t uvec __attribute__((vector_size(LANES * 4), aligned(4)));
#else
#define SPLITFUSE_INLINE inline __attribute__((always_inline))  // a call would pass several registers through memory
#include "wide.h"
typedef Wide<float> vec;
typedef Wide<int32_t> ivec;
typedef Wide<uint32_t> uvec;
#endif

struct bf16 {
    uint16_t bits;
};

inline float to_float(float x) { return x; }
inline float to_float(int8_t x) { return x; }
inline float to_float(bf16 x) {
    uint32_t bits = uint32_t(x.bits) << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

inline void store_one(float* to, float x) { *to = x; }
inline void store_one(bf16* to, float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    // Round to nearest even; NaN stays NaN instead of rounding up to infinity.
    to->bits = x != x ? 0x7fc0 : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <typename Register, typename std::enable_if<!std::is_class<Register>::value, int>::type = 0>
inline Register load_vector(const void* from) {
    // gcc 12 copies a register through the stack, in halves for which the load then waits.
#ifdef __AVX512F__
    if constexpr (sizeof(Register) == 64) return (Register)_mm512_loadu_si512(from);
#elif defined(__AVX2__)
    if constexpr (sizeof(Register) == 32) return (Register)_mm256_loadu_si256((const __m256i*)from);
#endif
    Register out;
    std::memcpy(&out, from, sizeof out);
    return out;
}
template <typename Vector, typename std::enable_if<std::is_class<Vector>::value, int>::type = 0>
SPLITFUSE_INLINE Vector load_vector(const void* from) {
    Vector out;
    for (int p = 0; p < Vector::PARTS; p++) out.parts[p] = load_vector<typename Vector::Part>((const char*)from + p * Vector::BYTES);
    return out;
}

// A store of one register, because gcc 12 copies half registers through the stack for a std::memcpy.
template <typename Register>
inline __attribute__((always_inline)) void store_register(void* to, Register x) {
    typedef Register Loose __attribute__((aligned(1), may_alias));
    *(Loose*)to = x;
}

template <typename Vector>
inline __attribute__((always_inline)) void store_vector(void* to, const Vector& x) {
#ifdef __AVX512F__
    std::memcpy(to, &x, sizeof x);
#else
    for (int p = 0; p < Vector::PARTS; p++) store_register((char*)to + p * Vector::BYTES, x.parts[p]);
#endif
}

// Numbers of To, lane by lane.
template <typename To, typename From>
inline __attribute__((always_inline)) To convert(const From& x) {
#ifdef __AVX512F__
    return __builtin_convertvector(x, To);
#else
    To out;
    for (int p = 0; p < To::PARTS; p++) out.parts[p] = __builtin_convertvector(x.parts[p], typename To::Part);
    return out;
#endif
}

// Stores the low bits of each number as a number of a narrower type.
template <typename Narrow, typename Vector>
SPLITFUSE_INLINE void store_narrow(void* to, const Vector& x) {
#ifdef __AVX512F__
    typedef Narrow narrow_t __attribute__((vector_size(LANES * sizeof(Narrow))));
    const narrow_t out = __builtin_convertvector(x, narrow_t);
    std::memcpy(to, &out, sizeof out);
#else
    typedef Narrow narrow_t __attribute__((vector_size(Vector::WIDTH * sizeof(Narrow))));
    for (int p = 0; p < Vector::PARTS; p++) {
        store_register((Narrow*)to + p * Vector::WIDTH, __builtin_convertvector(x.parts[p], narrow_t));
    }
#endif
}

#ifndef __AVX512F__
// LANES numbers of a narrower type: uint16_t, int8_t.
template <typename Vector, typename Narrow>
SPLITFUSE_INLINE Vector widen(const Narrow* from) {
    Vector out;
    for (int p = 0; p < Vector::PARTS; p++, from += Vector::WIDTH) {
#ifdef __AVX2__  // gcc 12 widens two halves and joins them
        if (sizeof(Narrow) == 2) out.parts[p] = (typename Vector::Part)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from));
        else out.parts[p] = (typename Vector::Part)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
        typedef Narrow narrow_t __attribute__((vector_size(Vector::WIDTH * sizeof(Narrow))));
        out.parts[p] = __builtin_convertvector(load_vector<narrow_t>(from), typename Vector::Part);
#endif
    }
    return out;
}
#endif

SPLITFUSE_INLINE vec load(const float* from) { return load_vector<vec>(from); }
SPLITFUSE_INLINE vec load(const bf16* from) {
#ifdef __AVX512F__  // gcc 12 widens two halves and joins them: twice the instructions of the hottest loop
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
    return (vec)_mm512_slli_epi32(wide, 16);
#else
    return (vec)(widen<uvec>((const uint16_t*)from) << 16);
#endif
}
SPLITFUSE_INLINE vec load(const int8_t* from) {
#if defined(__AVX512F__)  // gcc 12 converts lane by lane
    return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
#else
    return convert<vec>(widen<ivec>(from));
#endif
}
SPLITFUSE_INLINE void store(float* to, vec x) { store_vector(to, x); }
// Floats of one register.
#ifdef __AVX512F__
typedef vec lanes_t;
#else
typedef float lanes_t __attribute__((vector_size(32), aligned(4)));
#endif
// Stores to aligned memory past the caches; `finish_streams` before another thread may read what this thread stored.
inline void stream(float* to, lanes_t x) {
#if defined(__AVX512F__)
    _mm512_stream_ps(to, (__m512)x);
#elif defined(__AVX2__)
    _mm256_stream_ps(to, (__m256)x);
#else
    std::memcpy(to, &x, sizeof x);
#endif
}
inline void finish_streams() {
#ifdef __AVX2__
    _mm_sfence();
#endif
}
// Rounds like torch, to the bit.
SPLITFUSE_INLINE void store_rounded(float* to, vec x) { store(to, x); }
SPLITFUSE_INLINE void store_rounded(bf16* to, vec x) {
    uvec bits = (uvec)x;
    uvec rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    ivec is_nan = x != x;
    rounded = (uvec)((is_nan & 0x7fc0) | (~is_nan & (ivec)rounded));
    store_narrow<uint16_t>(to, rounded);
}
SPLITFUSE_INLINE void store(bf16* to, vec x) {
#ifdef __AVX512BF16__  // one instruction for eight; values below 2^-126 become 0
    __m256i half = (__m256i)_mm512_cvtneps_pbh((__m512)x);
    std::memcpy(to, &half, sizeof half);
#else
    store_rounded(to, x);
#endif
}

// The next LANES values of a row, padded with zeros if only `left` values remain.
template <typename T>
SPLITFUSE_INLINE vec load_part(const T* from, int64_t left) {
    if (left >= LANES) return load(from);
    T rest[LANES] = {};
    std::memcpy(rest, from, left * sizeof(T));
    return load(rest);
}
// Stores the first `left` values, or all, rounded.
template <typename T>
SPLITFUSE_INLINE void store_part(T* to, vec x, int64_t left) {
    if (left >= LANES) return store_rounded(to, x);
    T rest[LANES];
    store_rounded(rest, x);
    std::memcpy(to, rest, left * sizeof(T));
}

// out = f(x, d) for each vector of a row; d is the vector's first column.
template <typename T, typename Function>
inline void each_vector(T* out, const T* x, int64_t width, Function f) {
    for (int64_t d = 0; d < width; d += LANES) store_part(out + d, f(load_part(x + d, width - d), d), width - d);
}

#ifdef __AVX512F__
SPLITFUSE_INLINE vec splat(float x) { return x - vec{}; }  // with + the compiler would add 0, because of -0
SPLITFUSE_INLINE vec where(ivec condition, vec yes, vec no) { return (vec)((condition & (ivec)yes) | (~condition & (ivec)no)); }
// The larger number of each lane, `b` if one is NaN.
SPLITFUSE_INLINE vec larger(vec a, vec b) { return (vec)_mm512_max_ps((__m512)a, (__m512)b); }
SPLITFUSE_INLINE ivec larger(ivec a, ivec b) { return a > b ? a : b; }
#else
SPLITFUSE_INLINE vec splat(float x) { return x; }
template <typename Vector>
SPLITFUSE_INLINE Vector where(const ivec& condition, Vector yes, const Vector& no) {
    for (int p = 0; p < Vector::PARTS; p++) yes.parts[p] = condition.parts[p] ? yes.parts[p] : no.parts[p];
    return yes;
}
template <typename Vector>
SPLITFUSE_INLINE Vector larger(const Vector& a, const Vector& b) { return where(a > b, a, b); }
#endif

// a · b + c, rounded once if the processor can. Where two kernels must agree to the bit, the compiler must not choose
// between roundings.
template <typename Register>
inline __attribute__((always_inline)) Register fma_register(Register a, Register b, Register c) {
#if defined(__AVX512F__)
    return (Register)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Register)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__FP_FAST_FMAF)
    for (size_t i = 0; i < sizeof c / 4; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#else
    return a * b + c;
#endif
}
inline __attribute__((always_inline)) lanes_t fma(lanes_t a, lanes_t b, lanes_t c) { return fma_register(a, b, c); }
#ifndef __AVX512F__
SPLITFUSE_INLINE vec fma(const vec& a, const vec& b, vec c) {
    for (int p = 0; p < vec::PARTS; p++) c.parts[p] = fma_register(a.parts[p], b.parts[p], c.parts[p]);
    return c;
}
#endif

// Joins halves of the lanes until one lane is left. (Lane by lane it would be fifteen dependent operations.)
template <typename Vector, typename Join>
SPLITFUSE_INLINE auto across(const Vector& x, Join join) {
    typedef typename std::remove_const<typename std::remove_reference<decltype(x[0])>::type>::type Number;
    typedef Number eight __attribute__((vector_size(32)));
    typedef Number four __attribute__((vector_size(16)));
    eight halves[2];
    store_vector(halves, x);
    const eight h = join(halves[0], halves[1]);
    four quarters[2];
    std::memcpy(quarters, &h, sizeof h);
    const four q = join(quarters[0], quarters[1]);
    return join(join(q[0], q[2]), join(q[1], q[3]));
}
SPLITFUSE_INLINE float sum(vec x) { return across(x, [](auto a, auto b) { return a + b; }); }

// e^x for x <= 0, relative error below 3e-7: x = k·ln2 + r, then a polynomial in r and k put into the exponent. Several
// vectors go step by step: a processor's window has room for few chains of twenty operations.
template <int N>
inline __attribute__((always_inline)) void exp_nonpositive(vec (&x)[N]) {
    ivec small[N], k[N];
    vec r[N], p[N];
    const auto each = [](auto step) __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (int i = 0; i < N; i++) step(i);
    };
    each([&](int i) __attribute__((always_inline)) { small[i] = x[i] < splat(-87.0f); });
    // Truncation of a negative number rounds towards zero.
    each([&](int i) __attribute__((always_inline)) {
        k[i] = convert<ivec>(fma(x[i], splat(1.44269504089f), splat(-0.5f)));
    });
    each([&](int i) __attribute__((always_inline)) {
        const vec kf = convert<vec>(k[i]);
        r[i] = fma(kf, splat(2.12194440e-4f), fma(kf, splat(-0.693359375f), x[i]));
    });
    each([&](int i) __attribute__((always_inline)) { p[i] = splat(1.9875691500e-4f); });
    for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        each([&](int i) __attribute__((always_inline)) { p[i] = fma(p[i], r[i], splat(c)); });
    each([&](int i) __attribute__((always_inline)) { p[i] = fma(p[i] * r[i], r[i], r[i]) + 1.0f; });
    each([&](int i) __attribute__((always_inline)) { x[i] = (vec)(~small[i] & ((ivec)p[i] + (k[i] << 23))); });
}
SPLITFUSE_INLINE vec exp_nonpositive(vec x) {
    vec one[1] = {x};
    exp_nonpositive(one);
    return one[0];
}

SPLITFUSE_INLINE vec minus_abs(vec x) { return (vec)((ivec)x | INT32_MIN); }

// 1 / (1 + e^-x), by e^-|x|, which cannot overflow.
template <int N>
inline __attribute__((always_inline)) void sigmoid(vec (&x)[N]) {
    vec e[N];
    for (int i = 0; i < N; i++) e[i] = minus_abs(x[i]);
    exp_nonpositive(e);
    for (int i = 0; i < N; i++) x[i] = where(x[i] < splat(0.0f), e[i], splat(1.0f)) / (1.0f + e[i]);
}
SPLITFUSE_INLINE vec sigmoid(vec x) {
    vec one[1] = {x};
    sigmoid(one);
    return one[0];
}
SPLITFUSE_INLINE vec silu(vec x) { return x * sigmoid(x); }
template <int N>
inline __attribute__((always_inline)) void silu(vec (&x)[N]) {
    vec s[N];
    std::memcpy(s, x, sizeof s);
    sigmoid(s);
    for (int i = 0; i < N; i++) x[i] *= s[i];
}
// ln(1 + e^x), relative error below 3e-7: ln(1 + e) is 2·artanh(e / (2 + e)), whose series has no cancellation.
SPLITFUSE_INLINE vec softplus(vec x) {
    vec e = exp_nonpositive(minus_abs(x)), s = e / (2.0f + e), z = s * s;
    vec p = splat(1.0f / 15);
    for (int i : {13, 11, 9, 7, 5, 3, 1}) p = fma(p, z, splat(1.0f / float(i)));
    return where(x < splat(0.0f), vec{}, x) + 2.0f * s * p;
}
// (1 + tanh(u)) / 2 is sigmoid(2u).
SPLITFUSE_INLINE vec gelu_tanh(vec x) { return x * sigmoid(1.5957691216f * (x + 0.044715f * x * x * x)); }

// x · (1 + erf(x / √2)) / 2, absolute error below 2e-7 · |x| (Abramowitz & Stegun 1964, 7.1.26).
SPLITFUSE_INLINE vec gelu(vec x) {
    vec z = -0.70710678119f * minus_abs(x);
    vec t = 1.0f / (1.0f + 0.3275911f * z);
    vec p = splat(1.061405429f);
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    vec half_erfc = 0.5f * p * t * exp_nonpositive(-z * z);
    return x * where(x < splat(0.0f), half_erfc, 1.0f - half_erfc);
}

// tanh x, relative error below 3e-7: a polynomial where 1 - e^-2|x| would cancel, |x| < 0.625.
SPLITFUSE_INLINE vec tanh_of(vec x) {
    vec e = exp_nonpositive(2.0f * minus_abs(x));
    vec large = (vec)((ivec)((1.0f - e) / (1.0f + e)) | ((ivec)x & INT32_MIN));
    vec z = x * x;
    vec p = splat(-5.70498872745e-3f);
    for (float c : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f})
        p = fma(p, z, splat(c));
    return where(minus_abs(x) > splat(-0.625f), fma(x * z, p, x), large);
}
SPLITFUSE_INLINE vec softcap(vec x, float cap) { return cap * tanh_of(x * (1.0f / cap)); }
