// The CPU's smaller loops, for float and bfloat16: rope + KV write, norms, SwiGLU, GEGLU, drawing.
//
// Built by build.py with the machine's own compiler in about seven seconds; no torch headers, plain C entry points.
// OpenMP calls resolve to the runtime that torch has loaded already, so torch and we share one pool of threads.
// Prompt chunks are attention_prefill.cpp's.

#include <type_traits>

#include "simd.h"

namespace {

// ln x for normal x > 0, relative error below 2e-7: x = m·2^k with m in [sqrt(1/2), sqrt(2)), a polynomial in m - 1.
inline vec log_positive(vec x) {
    ivec bits = (ivec)x - 0x3f3504f3;
    vec k = __builtin_convertvector(bits >> 23, vec);
    vec f = (vec)((bits & 0x007fffff) + 0x3f3504f3) - 1.0f;
    vec z = f * f;
    vec p = splat(7.0376836292e-2f);
    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    p = p * f * z + k * -2.12194440e-4f - 0.5f * z;
    return f + p + k * 0.693359375f;
}

inline uvec scramble(uvec h) {
    h = (h ^ (h >> 16)) * 0x85ebca6bu;
    h = (h ^ (h >> 13)) * 0xc2b2ae35u;
    return h ^ (h >> 16);
}

// The token with the largest logit + Gumbel noise, the noise hashed from (key, token id): see reference.gumbel_argmax.
int64_t gumbel_argmax_row(const float* logits, int64_t vocab, uint64_t key) {
    vec best = splat(-INFINITY);
    ivec winner = {};
    uvec lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    for (int64_t at = 0; at < vocab; at += LANES) {
        vec logit = splat(-INFINITY);
        std::memcpy(&logit, logits + at, (vocab - at < LANES ? vocab - at : LANES) * sizeof(float));
        uvec id = lane + (uint32_t)at;
        uvec h = scramble(scramble(id ^ (uint32_t)key) + (uint32_t)(key >> 32));
        vec v = (__builtin_convertvector(h, vec) + 0.5f) * 0x1p-32f;
        vec w = 1.0f - v;
        // -log(1 - v), exact for small v: log(w)·v / (1 - w), and v itself where w rounds to 1. v = 1 gives infinity.
        ivec is_one = w == splat(1.0f), is_zero = w <= splat(0.0f);
        vec denominator = (vec)((is_one & (ivec)splat(1.0f)) | (~is_one & (ivec)(1.0f - w)));
        vec safe = (vec)((is_zero & (ivec)splat(1.0f)) | (~is_zero & (ivec)w));
        vec e = -log_positive(safe) * v / denominator;
        e = (vec)((is_one & (ivec)v) | (~is_one & (ivec)e));
        e = (vec)((is_zero & (ivec)splat(1e30f)) | (~is_zero & (ivec)e));
        vec score = logit - log_positive(e);
        ivec better = score > best;
        best = (vec)((better & (ivec)score) | (~better & (ivec)best));
        winner = (better & (ivec)id) | (~better & winner);
    }
    int64_t token = 0;
    float top = -INFINITY;
    for (int i = 0; i < LANES; i++)
        if (best[i] > top || (best[i] == top && winner[i] < token)) top = best[i], token = winner[i];
    return token;
}

constexpr int64_t MAX_HEAD_DIM = 512;

// x · scale · weight, rounded to T before the weight as in the reference models, unless the weight is exact.
template <typename T, typename W>
inline float weighted(float x, float scale, W weight) {
    T rounded;
    store_one(&rounded, std::is_same<T, W>::value ? x * scale : x * scale * to_float(weight));
    if (!std::is_same<T, W>::value) return to_float(rounded);
    store_one(&rounded, to_float(rounded) * to_float(weight));
    return to_float(rounded);
}

// Normalise (if weight) and rotate one head: `from` [D] → `to` [D].
template <typename T, typename W>
inline void rope_head(const T* from, T* to, const W* weight, float eps, const float* cos_sin, int64_t rotary, int64_t dim) {
    float x[MAX_HEAD_DIM];
    int64_t d = 0;
    for (; d + LANES <= dim; d += LANES) store(x + d, load(from + d));
    for (; d < dim; d++) x[d] = to_float(from[d]);
    if (weight) {
        float squares = 0;
        for (d = 0; d < dim; d++) squares += x[d] * x[d];
        float scale = 1.0f / std::sqrt(squares / dim + eps);
        for (d = 0; d < dim; d++) x[d] = weighted<T>(x[d], scale, weight[d]);
    }
    int64_t half = rotary / 2;
    for (d = 0; d + LANES <= half; d += LANES) {
        vec x1 = load(x + d), x2 = load(x + d + half), c = load(cos_sin + d), s = load(cos_sin + d + half);
        store(to + d, x1 * c - x2 * s);
        store(to + d + half, x2 * c + x1 * s);
    }
    for (; d < half; d++) {
        float x1 = x[d], x2 = x[d + half], c = cos_sin[d], s = cos_sin[d + half];
        store_one(to + d, x1 * c - x2 * s);
        store_one(to + d + half, x2 * c + x1 * s);
    }
    for (d = rotary; d < dim; d++) store_one(to + d, x[d]);
}

struct Rope {
    const float* cos_sin;
    const int64_t *positions, *slots;
    int64_t num_tokens, num_heads, num_kv_heads, head_dim, rotary, block_size, q_token, k_token, v_token;
    float eps;
};

template <typename T, typename W>
void rope_and_cache(const Rope& r, const T* q, const T* k, const T* v, const W* q_norm, const W* k_norm, T* q_out,
                    T* k_cache, T* v_cache, int num_threads) {
    int64_t dim = r.head_dim;
#pragma omp parallel for num_threads(num_threads) schedule(static) if (r.num_tokens >= 8)
    for (int64_t t = 0; t < r.num_tokens; t++) {
        const float* cos_sin = r.cos_sin + r.positions[t] * r.rotary;
        for (int64_t h = 0; h < r.num_heads; h++)
            rope_head(q + t * r.q_token + h * dim, q_out + (t * r.num_heads + h) * dim, q_norm, r.eps, cos_sin, r.rotary, dim);
        if (r.slots[t] < 0) continue;
        int64_t block = r.slots[t] / r.block_size, offset = r.slots[t] % r.block_size;
        for (int64_t h = 0; h < r.num_kv_heads; h++) {
            int64_t at = ((block * r.num_kv_heads + h) * r.block_size + offset) * dim;
            rope_head(k + t * r.k_token + h * dim, k_cache + at, k_norm, r.eps, cos_sin, r.rotary, dim);
            std::memcpy(v_cache + at, v + t * r.v_token + h * dim, dim * sizeof(T));
        }
    }
}

// Row t of x, or of new_residual = x + residual if there is one.
template <typename T>
inline const T* add_row(const T* x, const T* residual, T* new_residual, int64_t t, int64_t hidden) {
    const T* source = x + t * hidden;
    if (!residual) return source;
    T* to = new_residual + t * hidden;
    const T* other = residual + t * hidden;
    int64_t d = 0;
    for (; d + LANES <= hidden; d += LANES) store(to + d, load(source + d) + load(other + d));
    for (; d < hidden; d++) store_one(to + d, to_float(source[d]) + to_float(other[d]));
    return to;
}

// residual' = x + residual (if residual); out = residual' / rms(residual') * weight.
template <typename T, typename W>
void add_rms_norm(const T* x, const T* residual, const W* weight, T* out, T* new_residual, int64_t num_tokens,
                  int64_t hidden, float eps, int num_threads) {
#pragma omp parallel for num_threads(num_threads) schedule(static) if (num_tokens * hidden >= 32768)
    for (int64_t t = 0; t < num_tokens; t++) {
        const T* source = add_row(x, residual, new_residual, t, hidden);
        vec squares = {};
        float total = 0;
        int64_t d = 0;
        for (; d + LANES <= hidden; d += LANES) squares += load(source + d) * load(source + d);
        for (; d < hidden; d++) total += to_float(source[d]) * to_float(source[d]);
        float scale = 1.0f / std::sqrt((sum(squares) + total) / hidden + eps);
        T* to = out + t * hidden;
        for (d = 0; d + LANES <= hidden; d += LANES) {
            if (std::is_same<T, W>::value) {
                store(to + d, load(source + d) * scale);  // rounded to T, then weighted, as in the reference models
                store(to + d, load(to + d) * load(weight + d));
            } else {
                store(to + d, load(source + d) * scale * load(weight + d));
            }
        }
        for (; d < hidden; d++) store_one(to + d, weighted<T>(to_float(source[d]), scale, weight[d]));
    }
}

// residual' = x + residual (if residual); out = (residual' - mean) / sqrt(variance + eps) * weight + bias (if bias).
template <typename T>
void add_layer_norm(const T* x, const T* residual, const T* weight, const T* bias, T* out, T* new_residual,
                    int64_t num_tokens, int64_t hidden, float eps, int num_threads) {
#pragma omp parallel for num_threads(num_threads) schedule(static) if (num_tokens * hidden >= 32768)
    for (int64_t t = 0; t < num_tokens; t++) {
        const T* source = add_row(x, residual, new_residual, t, hidden);
        vec sums = {}, squares = {};
        float total = 0;
        int64_t d = 0, whole = hidden / LANES * LANES;
        for (; d < whole; d += LANES) sums += load(source + d);
        for (; d < hidden; d++) total += to_float(source[d]);
        float mean = (sum(sums) + total) / hidden;
        // A second pass over a row that is in the nearest cache: the difference of two large sums would cancel.
        total = 0;
        for (d = 0; d < whole; d += LANES) squares += (load(source + d) - mean) * (load(source + d) - mean);
        for (; d < hidden; d++) total += (to_float(source[d]) - mean) * (to_float(source[d]) - mean);
        float scale = 1.0f / std::sqrt((sum(squares) + total) / hidden + eps);
        T* to = out + t * hidden;
        for (d = 0; d < whole; d += LANES) {
            vec y = (load(source + d) - mean) * scale * load(weight + d);
            store(to + d, bias ? y + load(bias + d) : y);
        }
        for (; d < hidden; d++) {
            float y = (to_float(source[d]) - mean) * scale * to_float(weight[d]);
            store_one(to + d, bias ? y + to_float(bias[d]) : y);
        }
    }
}

// out = activation(gate), rounded to T as in the reference models, times up.
template <typename T, typename F>
void gated(const T* gate_up, T* out, int64_t num_tokens, int64_t inner, int num_threads, F activation) {
#pragma omp parallel for num_threads(num_threads) schedule(static) if (num_tokens * inner >= 16384)
    for (int64_t t = 0; t < num_tokens; t++) {
        const T *gate = gate_up + 2 * t * inner, *up = gate + inner;
        T* to = out + t * inner;
        int64_t d = 0;
        for (; d + LANES <= inner; d += LANES) {
            store(to + d, activation(load(gate + d)));
            store(to + d, load(to + d) * load(up + d));
        }
        if (d < inner) {
            T rest[3][LANES] = {};
            size_t bytes = (inner - d) * sizeof(T);
            std::memcpy(rest[0], gate + d, bytes);
            std::memcpy(rest[1], up + d, bytes);
            store(rest[2], activation(load(rest[0])));
            store(rest[2], load(rest[2]) * load(rest[1]));
            std::memcpy(to + d, rest[2], bytes);
        }
    }
}

}  // namespace

extern "C" void gumbel_argmax_float32(const void* logits, const void* keys, void* tokens, int64_t num_rows, int64_t vocab,
                                      int64_t num_threads) {
#pragma omp parallel for num_threads((int)num_threads) schedule(static) if (num_rows * vocab >= 16384)
    for (int64_t row = 0; row < num_rows; row++)
        ((int64_t*)tokens)[row] =
            gumbel_argmax_row((const float*)logits + row * vocab, vocab, ((const uint64_t*)keys)[row]);
}

extern "C" void softcap_float32(const void* x, void* out, int64_t count, float cap, int64_t num_threads) {
    const float* from = (const float*)x;
    float* to = (float*)out;
    int64_t whole = count / LANES * LANES;
#pragma omp parallel for num_threads((int)num_threads) schedule(static) if (count >= 32768)
    for (int64_t i = 0; i < whole; i += LANES) store(to + i, softcap(load(from + i), cap));
    float rest[LANES] = {};
    std::memcpy(rest, from + whole, (count - whole) * sizeof(float));
    store(rest, softcap(load(rest), cap));
    std::memcpy(to + whole, rest, (count - whole) * sizeof(float));
}

// T: of the values; W: of the norms' weights.
#define NORM_ENTRY_POINTS(T, W, SUFFIX)                                                                                \
    extern "C" void rope_and_cache_##SUFFIX(                                                                           \
        const void* q, const void* k, const void* v, const void* q_norm, const void* k_norm, void* q_out,              \
        void* k_cache, void* v_cache, const void* cos_sin, const void* positions, const void* slots,                   \
        int64_t num_tokens, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, int64_t rotary,                 \
        int64_t block_size, int64_t q_token, int64_t k_token, int64_t v_token, float eps, int64_t num_threads) {       \
        Rope r{(const float*)cos_sin, (const int64_t*)positions, (const int64_t*)slots, num_tokens, num_heads,         \
               num_kv_heads, head_dim, rotary, block_size, q_token, k_token, v_token, eps};                            \
        rope_and_cache<T, W>(r, (const T*)q, (const T*)k, (const T*)v, (const W*)q_norm, (const W*)k_norm, (T*)q_out,  \
                             (T*)k_cache, (T*)v_cache, (int)num_threads);                                              \
    }                                                                                                                  \
    extern "C" void add_rms_norm_##SUFFIX(const void* x, const void* residual, const void* weight, void* out,          \
                                          void* new_residual, int64_t num_tokens, int64_t hidden, float eps,           \
                                          int64_t num_threads) {                                                       \
        add_rms_norm<T, W>((const T*)x, (const T*)residual, (const W*)weight, (T*)out, (T*)new_residual, num_tokens,   \
                           hidden, eps, (int)num_threads);                                                             \
    }

#define ENTRY_POINTS(T, SUFFIX)                                                                                       \
    extern "C" void add_layer_norm_##SUFFIX(const void* x, const void* residual, const void* weight, const void* bias, \
                                            void* out, void* new_residual, int64_t num_tokens, int64_t hidden,         \
                                            float eps, int64_t num_threads) {                                          \
        add_layer_norm<T>((const T*)x, (const T*)residual, (const T*)weight, (const T*)bias, (T*)out,                  \
                          (T*)new_residual, num_tokens, hidden, eps, (int)num_threads);                                \
    }                                                                                                                  \
    extern "C" void silu_mul_##SUFFIX(const void* gate_up, void* out, int64_t num_tokens, int64_t inner,               \
                                      int64_t num_threads) {                                                           \
        gated((const T*)gate_up, (T*)out, num_tokens, inner, (int)num_threads, [](vec x) { return silu(x); });         \
    }                                                                                                                  \
    extern "C" void gelu_tanh_mul_##SUFFIX(const void* gate_up, void* out, int64_t num_tokens, int64_t inner,          \
                                           int64_t num_threads) {                                                      \
        gated((const T*)gate_up, (T*)out, num_tokens, inner, (int)num_threads, [](vec x) { return gelu_tanh(x); });    \
    }

ENTRY_POINTS(float, float32)
ENTRY_POINTS(bf16, bfloat16)
NORM_ENTRY_POINTS(float, float, float32)
NORM_ENTRY_POINTS(bf16, bf16, bfloat16)
NORM_ENTRY_POINTS(bf16, float, bfloat16_float32)
