// The CPU's smaller loops, for float and bfloat16: rope + KV write, norms, SwiGLU, GEGLU, sampling.
//
// Built by build.py with the machine's own compiler in about seven seconds; no torch headers, plain C entry points.
// OpenMP calls resolve to the runtime that torch has loaded already, so torch and we share one pool of threads.
// Prompt chunks are attention_prefill.cpp's.

#include <type_traits>

#include "arguments.h"

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

template <typename T, typename W>
void rope_and_cache(const RopeAndCache<T, W>& r) {
    int64_t dim = r.head_dim;
#pragma omp parallel for num_threads(r.num_threads) schedule(static) if (r.num_tokens >= 8)
    for (int64_t t = 0; t < r.num_tokens; t++) {
        const float* cos_sin = r.cos_sin + r.positions[t] * r.rotary;
        for (int64_t h = 0; h < r.num_heads; h++)
            rope_head(r.q + t * r.q_token + h * dim, r.out + (t * r.num_heads + h) * dim, r.q_norm, r.eps, cos_sin, r.rotary, dim);
        if (r.slots[t] < 0) continue;
        int64_t block = r.slots[t] / r.block_size, offset = r.slots[t] % r.block_size;
        for (int64_t h = 0; h < r.num_kv_heads; h++) {
            int64_t at = ((block * r.num_kv_heads + h) * r.block_size + offset) * dim;
            rope_head(r.k + t * r.k_token + h * dim, r.k_cache + at, r.k_norm, r.eps, cos_sin, r.rotary, dim);
            std::memcpy(r.v_cache + at, r.v + t * r.v_token + h * dim, dim * sizeof(T));
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
void add_rms_norm(const AddRmsNorm<T, W>& a) {
    const int64_t hidden = a.hidden;
    const W* weight = a.weight;
#pragma omp parallel for num_threads(a.num_threads) schedule(static) if (a.num_tokens * hidden >= 32768)
    for (int64_t t = 0; t < a.num_tokens; t++) {
        const T* source = add_row(a.x, a.residual, a.new_residual, t, hidden);
        vec squares = {};
        float total = 0;
        int64_t d = 0;
        for (; d + LANES <= hidden; d += LANES) squares += load(source + d) * load(source + d);
        for (; d < hidden; d++) total += to_float(source[d]) * to_float(source[d]);
        float scale = 1.0f / std::sqrt((sum(squares) + total) / hidden + a.eps);
        T* to = a.out + t * hidden;
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
void add_layer_norm(const AddLayerNorm<T>& a) {
    const int64_t hidden = a.hidden;
    const T *weight = a.weight, *bias = a.bias;
#pragma omp parallel for num_threads(a.num_threads) schedule(static) if (a.num_tokens * hidden >= 32768)
    for (int64_t t = 0; t < a.num_tokens; t++) {
        const T* source = add_row(a.x, a.residual, a.new_residual, t, hidden);
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
        float scale = 1.0f / std::sqrt((sum(squares) + total) / hidden + a.eps);
        T* to = a.out + t * hidden;
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
void gated(const Gated<T>& a, F activation) {
    const int64_t inner = a.inner;
#pragma omp parallel for num_threads(a.num_threads) schedule(static) if (a.num_tokens * inner >= 16384)
    for (int64_t t = 0; t < a.num_tokens; t++) {
        const T *gate = a.gate_up + 2 * t * inner, *up = gate + inner;
        T* to = a.out + t * inner;
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

template <typename T>
void gated(const Gated<T>& a) {
    if (a.is_gelu) gated(a, [](vec x) { return gelu_tanh(x); });
    else gated(a, [](vec x) { return silu(x); });
}

}  // namespace

extern "C" {

void gumbel_argmax(const GumbelArgmax& a) {
#pragma omp parallel for num_threads(a.num_threads) schedule(static) if (a.num_rows * a.vocab >= 16384)
    for (int64_t row = 0; row < a.num_rows; row++)
        a.tokens[row] = gumbel_argmax_row(a.logits + row * a.vocab, a.vocab, a.keys[row]);
}

void softcap(const Softcap& a) {
    int64_t whole = a.count / LANES * LANES;
#pragma omp parallel for num_threads(a.num_threads) schedule(static) if (a.count >= 32768)
    for (int64_t i = 0; i < whole; i += LANES) store(a.out + i, softcap(load(a.x + i), a.cap));
    float rest[LANES] = {};
    std::memcpy(rest, a.x + whole, (a.count - whole) * sizeof(float));
    store(rest, softcap(load(rest), a.cap));
    std::memcpy(a.out + whole, rest, (a.count - whole) * sizeof(float));
}

void rope_and_cache_float32(const RopeAndCache<float, float>& a) { rope_and_cache(a); }
void rope_and_cache_bfloat16(const RopeAndCache<bf16, bf16>& a) { rope_and_cache(a); }
void rope_and_cache_bfloat16_float32(const RopeAndCache<bf16, float>& a) { rope_and_cache(a); }
void add_rms_norm_float32(const AddRmsNorm<float, float>& a) { add_rms_norm(a); }
void add_rms_norm_bfloat16(const AddRmsNorm<bf16, bf16>& a) { add_rms_norm(a); }
void add_rms_norm_bfloat16_float32(const AddRmsNorm<bf16, float>& a) { add_rms_norm(a); }
void add_layer_norm_float32(const AddLayerNorm<float>& a) { add_layer_norm(a); }
void add_layer_norm_bfloat16(const AddLayerNorm<bf16>& a) { add_layer_norm(a); }
void gated_float32(const Gated<float>& a) { gated(a); }
void gated_bfloat16(const Gated<bf16>& a) { gated(a); }

}
