// Small ops of the CPU, for float and bfloat16: rope + KV write, norms, activations, sums.
//
// build.py builds this library with the machine's own compiler in about seven seconds; no torch headers, plain C entry
// points. OpenMP calls resolve to the runtime that torch has loaded already, so torch and the library share one pool of
// threads. All threads of a team (team.h) call an op; if `team` is null, the op makes a team.

#include <type_traits>

#include "arguments.h"
#include "integer_rounding.h"
#include "paged_cache.h"

namespace {

constexpr int64_t MAX_HEAD_DIM = 512, MAX_LATENT_DIM = 1024;

// x · scale · weight, rounded to T before the weight like in the reference models, unless the weight is exact.
template <typename T, typename W>
inline float weighted(float x, float scale, W weight) {
    T rounded;
    store_one(&rounded, std::is_same<T, W>::value ? x * scale : x * scale * to_float(weight));
    if (!std::is_same<T, W>::value) return to_float(rounded);
    store_one(&rounded, to_float(rounded) * to_float(weight));
    return to_float(rounded);
}

// Normalises (if weight) and rotates one head: `from` [D] → `to` [D]. Only the first `rotary` dimensions turn.
template <typename T, typename To, typename W>
inline void rope_head(const T* from, To* to, const W* weight, float eps, const float* cos_sin, int64_t rotary, int64_t dim) {
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
        const vec first = x1 * c;  // a statement of its own, because the compiler fuses the first product
        store(to + d, first - x2 * s);
        const vec second = x2 * c;
        store(to + d + half, second + x1 * s);
    }
    for (; d < half; d++) {
        float x1 = x[d], x2 = x[d + half], c = cos_sin[d], s = cos_sin[d + half];
        store_one(to + d, x1 * c - x2 * s);
        store_one(to + d + half, x2 * c + x1 * s);
    }
    for (d = rotary; d < dim; d++) store_one(to + d, x[d]);
}

// Stores a head [D] rounded to int8, with its own scale.
template <typename T>
void store_int8(const CachedRun<int8_t>& to, const T* head, int64_t dim) {
    const auto numbers = [&](int64_t d) { return load_part(head + d, dim - d); };
    const IntegerRounding rounding(numbers, 0, dim);
    int64_t d = 0;
    for (; d + LANES <= dim; d += LANES) store_bytes(to.values + d, rounding(numbers(d)));
    if (d < dim) {
        int8_t rest[LANES];
        store_bytes(rest, rounding(numbers(d)));
        std::memcpy(to.values + d, rest, dim - d);
    }
    *to.scales = rounding.scale;
}

template <typename T, typename W>
void rope_and_cache_token(const RopeAndCache<T, W>& r, int64_t t) {
    int64_t dim = r.head_dim;
    const float* cos_sin = r.cos_sin + r.positions[t] * r.rotary;
    for (int64_t h = 0; h < r.num_heads; h++)
        rope_head(r.q + t * r.q_token + h * dim, r.out + (t * r.num_heads + h) * dim, r.q_norm, r.eps, cos_sin, r.rotary, dim);
    if (r.slots[t] < 0) return;
    int64_t block = r.slots[t] / r.block_size, offset = r.slots[t] % r.block_size;
    for (int64_t h = 0; h < r.num_kv_heads; h++) {
        const T *k = r.k + t * r.k_token + h * dim, *v = r.v + t * r.v_token + h * dim;
        if (r.is_cache_int8) {
            float rotated[MAX_HEAD_DIM];
            rope_head(k, rotated, r.k_norm, r.eps, cos_sin, r.rotary, dim);
            store_int8(cache_of<int8_t>(r, r.k_cache).at(block, h, offset), rotated, dim);
            const CachedRun<int8_t> values = cache_of<int8_t>(r, r.v_cache).at(block, h, offset);
            if (r.v_norm) {
                rope_head(v, rotated, r.v_norm, r.eps, cos_sin, 0, dim);
                store_int8(values, rotated, dim);
            } else {
                store_int8(values, v, dim);
            }
        } else {
            rope_head(k, cache_of<T>(r, r.k_cache).at(block, h, offset).values, r.k_norm, r.eps, cos_sin, r.rotary, dim);
            T* values = cache_of<T>(r, r.v_cache).at(block, h, offset).values;
            if (r.v_norm) rope_head(v, values, r.v_norm, r.eps, cos_sin, 0, dim);
            else std::memcpy(values, v, dim * sizeof(T));
        }
    }
}

template <typename T, typename W>
void rope_and_cache(const RopeAndCache<T, W>& r, const Team* team) {
    each_item(r, team, r.num_tokens, r.num_tokens >= 8, [&](int64_t t) { rope_and_cache_token(r, t); });
}

template <typename T>
void latent_and_cache_token(const LatentAndCache<T>& a, int64_t t) {
    const int64_t rank = a.rank, rotary = a.rotary, dim = rank + rotary;
    const float* cos_sin = a.cos_sin + a.positions[t] * rotary;
    const T *none = nullptr, *latent = a.latent + t * a.latent_token, *k = a.k + t * a.k_token;
    for (int64_t h = 0; h < a.num_heads; h++)
        rope_head(a.q + t * a.q_token + h * a.q_head + a.first, a.out + (t * a.num_heads + h) * dim + rank, none, 0, cos_sin, rotary, rotary);
    if (a.slots[t] < 0) return;
    const int64_t block = a.slots[t] / a.block_size, offset = a.slots[t] % a.block_size;
    if (a.is_cache_int8) {
        float line[MAX_LATENT_DIM];
        for (int64_t d = 0; d < rank; d++) line[d] = to_float(latent[d]);
        rope_head(k, line + rank, none, 0, cos_sin, rotary, rotary);
        return store_int8(PagedCache<int8_t>{a.cache, 1, a.block_size, dim}.at(block, 0, offset), line, dim);
    }
    T* to = PagedCache<T>{a.cache, 1, a.block_size, dim}.at(block, 0, offset).values;
    std::memcpy(to, latent, rank * sizeof(T));
    rope_head(k, to + rank, none, 0, cos_sin, rotary, rotary);
}

template <typename T>
void latent_and_cache(const LatentAndCache<T>& a, const Team* team) {
    each_item(a, team, a.num_tokens, a.num_tokens >= 8, [&](int64_t t) { latent_and_cache_token(a, t); });
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
void add_rms_norm_token(const AddRmsNorm<T, W>& a, int64_t t) {
    const int64_t hidden = a.hidden;
    const W* weight = a.weight;
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
            store(to + d, load(source + d) * scale);  // rounded to T, then weighted, like in the reference models
            store(to + d, load(to + d) * load(weight + d));
        } else {
            store(to + d, load(source + d) * scale * load(weight + d));
        }
    }
    for (; d < hidden; d++) store_one(to + d, weighted<T>(to_float(source[d]), scale, weight[d]));
}

template <typename T, typename W>
void add_rms_norm(const AddRmsNorm<T, W>& a, const Team* team) {
    each_item(a, team, a.num_tokens, a.num_tokens * a.hidden >= 32768, [&](int64_t t) { add_rms_norm_token(a, t); });
}

// residual' = x + residual (if residual); out = (residual' - mean) / sqrt(variance + eps) * weight + bias (if bias).
template <typename T>
void add_layer_norm_token(const AddLayerNorm<T>& a, int64_t t) {
    const int64_t hidden = a.hidden;
    const T *weight = a.weight, *bias = a.bias;
    const T* source = add_row(a.x, a.residual, a.new_residual, t, hidden);
    vec sums = {}, squares = {};
    float total = 0;
    int64_t d = 0, whole = hidden / LANES * LANES;
    for (; d < whole; d += LANES) sums += load(source + d);
    for (; d < hidden; d++) total += to_float(source[d]);
    float mean = (sum(sums) + total) / hidden;
    // A second pass, over a row in the first-level cache, because the difference of two large sums would cancel.
    total = 0;
    for (d = 0; d < whole; d += LANES) squares += (load(source + d) - mean) * (load(source + d) - mean);
    for (; d < hidden; d++) total += (to_float(source[d]) - mean) * (to_float(source[d]) - mean);
    float scale = 1.0f / std::sqrt((sum(squares) + total) / hidden + a.eps);
    T* to = a.out + t * hidden;
    for (d = 0; d < whole; d += LANES) {
        const vec y = (load(source + d) - mean) * scale, w = load(weight + d);
        store(to + d, bias ? fma(y, w, load(bias + d)) : y * w);
    }
    for (; d < hidden; d++) {
        float y = (to_float(source[d]) - mean) * scale * to_float(weight[d]);
        store_one(to + d, bias ? y + to_float(bias[d]) : y);
    }
}

template <typename T>
void add_layer_norm(const AddLayerNorm<T>& a, const Team* team) {
    each_item(a, team, a.num_tokens, a.num_tokens * a.hidden >= 32768, [&](int64_t t) { add_layer_norm_token(a, t); });
}

// out = activation(gate), rounded to T like in the reference models, times up. Six vectors go step by step: one takes
// 3.4 ns, alone 4.8.
template <typename T, typename F>
void gated_token(const Gated<T>& a, int64_t t, F activation) {
    const int64_t inner = a.inner;
    const T *gate = a.gate_up + 2 * t * inner, *up = gate + inner;
    T* to = a.out + t * inner;
    int64_t d = 0;
    const auto each_some = [&](auto num) __attribute__((always_inline)) {
        for (; d + num * LANES <= inner; d += num * LANES) {
            vec x[num];
            for (int i = 0; i < num; i++) x[i] = load(gate + d + i * LANES);
            activation(x);
            for (int i = 0; i < num; i++) {
                T* here = to + d + i * LANES;
                store(here, x[i]);
                store(here, load(here) * load(up + d + i * LANES));
            }
        }
    };
    each_some(std::integral_constant<int, 6>{});
    each_some(std::integral_constant<int, 1>{});
    if (d < inner) {
        T rest[3][LANES] = {};
        size_t bytes = (inner - d) * sizeof(T);
        std::memcpy(rest[0], gate + d, bytes);
        std::memcpy(rest[1], up + d, bytes);
        vec x[1] = {load(rest[0])};
        activation(x);
        store(rest[2], x[0]);
        store(rest[2], load(rest[2]) * load(rest[1]));
        std::memcpy(to + d, rest[2], bytes);
    }
}

// out = gate · sigmoid(1.702 · gate) · (up + 1), with gate at most `limit` and up within ±limit.
template <typename T>
void clamped_token(const Gated<T>& a, int64_t t) {
    const T *gate = a.gate_up + 2 * t * a.inner, *up = gate + a.inner;
    const vec most = splat(a.limit), least = splat(-a.limit);
    each_vector(a.out + t * a.inner, gate, a.inner, [&](vec g, int64_t d) {
        vec u = load_part(up + d, a.inner - d);
        g = where(g > most, most, g);
        u = where(u > most, most, where(u < least, least, u));
        return g * sigmoid(1.702f * g) * (u + 1.0f);
    });
}

// out = gelu_tanh(what gate has beyond its row's mean and `limit` standard deviations) · up.
template <typename T>
void sparse_token(const Gated<T>& a, int64_t t) {
    const int64_t inner = a.inner, whole = inner / LANES * LANES;
    const T *gate = a.gate_up + 2 * t * inner, *up = gate + inner;
    vec sums = {}, squares = {};
    float total = 0;
    for (int64_t d = 0; d < whole; d += LANES) sums += load(gate + d);
    for (int64_t d = whole; d < inner; d++) total += to_float(gate[d]);
    const float mean = (sum(sums) + total) / inner;
    total = 0;
    for (int64_t d = 0; d < whole; d += LANES) squares += (load(gate + d) - mean) * (load(gate + d) - mean);
    for (int64_t d = whole; d < inner; d++) total += (to_float(gate[d]) - mean) * (to_float(gate[d]) - mean);
    const vec cutoff = splat(mean + std::sqrt((sum(squares) + total) / inner) * a.limit);
    each_vector(a.out + t * inner, gate, inner, [&](vec g, int64_t d) {
        return gelu_tanh(where(g < cutoff, vec{}, g - cutoff)) * load_part(up + d, inner - d);
    });
}

template <typename T>
void gated(const Gated<T>& a, const Team* team) {
    each_item(a, team, a.num_tokens, a.num_tokens * a.inner >= 16384, [&](int64_t t) {
        if (a.kind == 3) sparse_token(a, t);
        else if (a.kind == 2) clamped_token(a, t);
        else if (a.kind == 1) gated_token(a, t, [](auto& x) { for (vec& each : x) each = gelu_tanh(each); });
        else gated_token(a, t, [](auto& x) { silu(x); });
    });
}

template <typename T>
void select_rows(const SelectRows<T>& a, const Team* team) {
    each_item(a, team, a.num_rows, a.num_rows * a.width >= 32768, [&](int64_t row) {
        const int64_t from = a.indices ? a.indices[row] : row;
        std::memcpy(a.out + row * a.width, a.x + from * a.x_row, a.width * sizeof(T));
    });
}

template <typename T>
void activate_row(const Activation<T>& a, int64_t row) {
    const T* x = a.x + row * a.width;
    T* out = a.out + row * a.width;
    if (a.kind == 0) each_vector(out, x, a.width, [](vec v, int64_t) { return gelu(v); });
    else if (a.kind == 1) each_vector(out, x, a.width, [](vec v, int64_t) { return gelu_tanh(v); });
    else if (a.kind == 2) each_vector(out, x, a.width, [](vec v, int64_t) { return where(v < splat(0.0f), vec{}, v); });
    else if (a.kind == 3) each_vector(out, x, a.width, [](vec v, int64_t) { return where(v < splat(0.0f), vec{}, v * v); });
    else each_vector(out, x, a.width, [](vec v, int64_t) { return 2.0f * sigmoid(2.0f * v) - 1.0f; });  // tanh
}

template <typename T>
void activation(const Activation<T>& a, const Team* team) {
    each_item(a, team, a.num_rows, a.num_rows * a.width >= 16384, [&](int64_t row) { activate_row(a, row); });
}

template <typename T>
void add_scaled_row(const AddScaled<T>& a, int64_t row) {
    const T* x = a.x + row * a.width;
    T* out = a.out + row * a.width;
    if (!a.other) return each_vector(out, x, a.width, [&](vec v, int64_t) { return v * a.factor; });
    const T* other = a.other + row * a.width;
    each_vector(out, x, a.width, [&](vec v, int64_t d) { return (v + load_part(other + d, a.width - d)) * a.factor; });
}

template <typename T>
void add_scaled(const AddScaled<T>& a, const Team* team) {
    each_item(a, team, a.num_rows, a.num_rows * a.width >= 32768, [&](int64_t row) { add_scaled_row(a, row); });
}

}  // namespace

SPLITFUSE_NORM(rope_and_cache, RopeAndCache)
SPLITFUSE_OP(latent_and_cache, LatentAndCache)
SPLITFUSE_NORM(add_rms_norm, AddRmsNorm)
SPLITFUSE_OP(add_layer_norm, AddLayerNorm)
SPLITFUSE_OP(gated, Gated)
SPLITFUSE_OP(select_rows, SelectRows)
SPLITFUSE_OP(activation, Activation)
SPLITFUSE_OP(add_scaled, AddScaled)
