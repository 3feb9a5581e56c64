// Paged attention of short rows on the CPU, one query token at a time. attention_prefill.cpp does prompt chunks.

#include <algorithm>
#include <type_traits>

#include "arguments.h"
#include "paged_cache.h"
#include "team.h"

namespace {

// Scores of `count` consecutive keys against the query heads of their group. q is float and scaled, [G, head_dim];
// scores[g * stride + i]. HEADS query heads share a load of a key. The rest of a vector is added with fmaf: without it,
// on an EPYC, gcc 12 rounds the product for one head and not for four, so a rank with one head gave other bits.
template <int HEADS, typename T>
inline void score_keys(const float* q, const T* keys, int64_t count, int64_t head_dim, float* scores, int64_t stride) {
    for (int64_t i = 0; i < count; i++) {
        const T* key = keys + i * head_dim;
        vec acc[HEADS] = {};
        int64_t d = 0;
        for (; d + LANES <= head_dim; d += LANES) {
            vec k = load(key + d);
            for (int g = 0; g < HEADS; g++) acc[g] += load(q + g * head_dim + d) * k;
        }
        for (int g = 0; g < HEADS; g++) {
            float total = sum(acc[g]);
            for (int64_t e = d; e < head_dim; e++) total = __builtin_fmaf(q[g * head_dim + e], to_float(key[e]), total);
            scores[g * stride + i] = total;
        }
    }
}

#ifdef __AVX512F__
// Lane i of the result is the sum of from[i]: a tree of shuffles, a quarter of the work of sixteen separate sums.
inline vec sums_of_16(const vec* from) {
    __m512 twos[8], fours[4], eights[2];
    for (int i = 0; i < 8; i++) {
        __m512 a = (__m512)from[2 * i], b = (__m512)from[2 * i + 1];
        twos[i] = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    }
    for (int i = 0; i < 4; i++) {
        __m512d a = _mm512_castps_pd(twos[2 * i]), b = _mm512_castps_pd(twos[2 * i + 1]);
        fours[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    for (int i = 0; i < 2; i++) {
        __m512 a = fours[2 * i], b = fours[2 * i + 1];
        eights[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
    return (vec)_mm512_add_ps(_mm512_shuffle_f32x4(eights[0], eights[1], 0x88),
                              _mm512_shuffle_f32x4(eights[0], eights[1], 0xdd));
}

// Like score_keys, for keys of 16·n int8 and without their scales: sixteen sums at a time.
template <int HEADS>
inline void score_int8_keys(const float* q, const int8_t* keys, int64_t count, int64_t head_dim, float* scores, int64_t stride) {
    constexpr int KEYS = LANES / HEADS;
    for (int64_t i = 0; i < count; i += KEYS) {
        const int64_t here = count - i < KEYS ? count - i : KEYS;
        const int8_t* key[KEYS];
        for (int k = 0; k < KEYS; k++) key[k] = keys + (i + (k < here ? k : here - 1)) * head_dim;
        vec acc[LANES] = {};
        for (int64_t d = 0; d < head_dim; d += LANES) {
            vec query[HEADS];
            for (int g = 0; g < HEADS; g++) query[g] = load(q + g * head_dim + d);
#pragma GCC unroll 16
            for (int k = 0; k < KEYS; k++) {
                const vec floats = load(key[k] + d);
                for (int g = 0; g < HEADS; g++) acc[g * KEYS + k] += query[g] * floats;
            }
        }
        float sums[LANES];
        store(sums, sums_of_16(acc));
        for (int g = 0; g < HEADS; g++) std::memcpy(scores + g * stride + i, sums + g * KEYS, here * sizeof(float));
    }
}
#endif

#ifdef __AVX512BF16__
// Scores of `count` consecutive keys of 32·NUM bfloat16 against one query, sixteen keys at a time.
template <int NUM>
inline void score_by_sixteen(const bf16* q, const bf16* keys, int64_t count, float scale, float* scores) {
    uvec query[NUM];
    std::memcpy(query, q, sizeof query);
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t here = count - i < LANES ? count - i : LANES;
        vec acc[LANES];
#pragma GCC unroll 16
        for (int k = 0; k < LANES; k++) {
            const uvec* key = (const uvec*)(keys + (i + (k < here ? k : here - 1)) * NUM * 32);
            acc[k] = vec{};
            for (int j = 0; j < NUM; j++)
                acc[k] = (vec)_mm512_dpbf16_ps((__m512)acc[k], (__m512bh)key[j], (__m512bh)query[j]);
        }
        __mmask16 is_there = uint16_t((1u << here) - 1);
        _mm512_mask_storeu_ps(scores + i, is_there, (__m512)(sums_of_16(acc) * scale));
    }
}
#endif

// out[g, :] += sum over `count` consecutive values of weights[g * stride + i] · value. A slice of the output, NUM
// vectors of each head, stays in registers over all values; returns the beginning of the next slice.
template <int HEADS, int NUM, typename T>
inline int64_t add_slices(const T* values, const float* weights, int64_t stride, int64_t count, int64_t head_dim, float* out, int64_t d) {
    for (; d + NUM * LANES <= head_dim; d += NUM * LANES) {
        vec acc[HEADS][NUM];
        for (int g = 0; g < HEADS; g++)
            for (int n = 0; n < NUM; n++) acc[g][n] = load(out + g * head_dim + d + n * LANES);
        for (int64_t i = 0; i < count; i++) {
            vec v[NUM];
            for (int n = 0; n < NUM; n++) v[n] = load(values + i * head_dim + d + n * LANES);
            for (int g = 0; g < HEADS; g++)
                for (int n = 0; n < NUM; n++) acc[g][n] += v[n] * weights[g * stride + i];
        }
        for (int g = 0; g < HEADS; g++)
            for (int n = 0; n < NUM; n++) store(out + g * head_dim + d + n * LANES, acc[g][n]);
    }
    return d;
}

template <int HEADS, typename T>
inline void add_values(const T* values, const float* weights, int64_t stride, int64_t count, int64_t head_dim, float* out) {
    int64_t d = add_slices<HEADS, 4>(values, weights, stride, count, head_dim, out, 0);
    d = add_slices<HEADS, 1>(values, weights, stride, count, head_dim, out, d);
    for (; d < head_dim; d++)
        for (int64_t i = 0; i < count; i++)
            for (int g = 0; g < HEADS; g++) {
                float& sum = out[g * head_dim + d];
                sum = __builtin_fmaf(to_float(values[i * head_dim + d]), weights[g * stride + i], sum);
            }
}

// Turns scores into weights in place. The caller's buffer has room for `count` rounded up to LANES.
inline void softmax(float* scores, int64_t count) {
    int64_t padded = (count + LANES - 1) / LANES * LANES;
    for (int64_t i = count; i < padded; i++) scores[i] = -INFINITY;
    vec highest = load(scores);
    for (int64_t i = LANES; i < padded; i += LANES) {
        vec s = load(scores + i);
        highest = where(s > highest, s, highest);
    }
    float best = highest[0];
    for (int i = 1; i < LANES; i++) best = highest[i] > best ? highest[i] : best;
    vec total = {};
    for (int64_t i = 0; i < padded; i += LANES) {
        vec e = exp_nonpositive(load(scores + i) - best);
        store(scores + i, e);
        total += e;
    }
    float inverse = 1.0f / sum(total);
    for (int64_t i = 0; i < padded; i += LANES) store(scores + i, load(scores + i) * inverse);
}

inline void fetch(const void* from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char*)from + i);
}

template <typename C>
inline void fetch(const CachedRun<C>& run, int64_t count, int64_t head_dim) {
    fetch(run.values, count * head_dim * sizeof(C));
    if (PagedCache<C>::HAS_SCALES) fetch(run.scales, count * sizeof(float));
}

// Keys that a query token sees, [first, first + count) of a row, at `num_kv` KV heads from `kv_head` on.
template <typename T>
struct Span {
    const PagedAttention<T>& a;
    const int32_t* table;
    int64_t first, count, kv_head, num_kv;

    Span(const PagedAttention<T>& a, int64_t row, int64_t token, int64_t kv_head, int64_t num_kv)
        : a(a), table(a.block_tables + row * a.max_blocks), kv_head(kv_head), num_kv(num_kv) {
        int64_t position = a.seq_lens[row] - (a.query_start_loc[row + 1] - token);
        first = a.window ? std::max<int64_t>(position - a.window + 1, 0) : 0;
        count = position + 1 - first;
    }

    int64_t run_at(int64_t i) const { return std::min(a.block_size - (first + i) % a.block_size, count - i); }

    // Place of the span's token `i` for its KV head `h`.
    template <typename C>
    CachedRun<C> token_at(const PagedCache<C>& cache, int64_t i, int64_t h) const {
        int64_t at = first + i;
        return cache.at(table[at / a.block_size], kv_head + h, at % a.block_size);
    }

    // visit(CachedRun, h, i, run) for each block and head. Heads are neighbours in a block, so all heads are visited
    // before the next block, which is fetched meanwhile: 16 layers of 32 rows x 290 keys, 8 KV heads of 64, then take
    // 7.4 ms, 8.7 without fetching, 13.5 a head at a time (a plain read: 6.4); blocks in disorder 10.8, 14.3, 20.7.
    template <typename C, typename Visit>
    void each_run(const PagedCache<C>& cache, Visit&& visit) const {
        for (int64_t i = 0, run; i < count; i += run) {
            run = run_at(i);
            for (int64_t h = 0; h < num_kv; h++) {
                if (i + run < count) fetch(token_at(cache, i + run, h), run_at(i + run), a.head_dim);
                visit(token_at(cache, i, h), h, i, run);
            }
        }
    }

    template <typename C>
    void fetch_first(const PagedCache<C>& cache) const {
        for (int64_t h = 0; h < num_kv; h++) fetch(token_at(cache, 0, h), run_at(0), a.head_dim);
    }
};

// Calls some(number of heads, first head) for all heads of a group, some heads at a time.
template <typename Some>
inline void each_some(int64_t group, Some&& some) {
    int64_t g = 0;
    for (; g + 4 <= group; g += 4) some(std::integral_constant<int, 4>{}, g);
    for (; g + 3 <= group; g += 3) some(std::integral_constant<int, 3>{}, g);
    for (; g + 2 <= group; g += 2) some(std::integral_constant<int, 2>{}, g);
    for (; g < group; g++) some(std::integral_constant<int, 1>{}, g);
}

// Scores of `run` consecutive keys against the query heads of one KV head; `query` is q in float32, scaled.
template <typename T, typename C>
inline void score_group(const PagedAttention<T>& a, const T* q, const float* query, const C* keys, int64_t run, float* scores, int64_t stride) {
    int64_t group = a.num_heads / a.num_kv_heads, dim = a.head_dim;
#ifdef __AVX512BF16__
    if constexpr (std::is_same<C, bf16>::value) {
        auto score = [&](auto num) {
            for (int64_t g = 0; g < group; g++) score_by_sixteen<num>(q + g * a.q_head, keys, run, a.scale, scores + g * stride);
        };
        if (dim == 64) return score(std::integral_constant<int, 2>{});
        if (dim == 128) return score(std::integral_constant<int, 4>{});
    }
#endif
#ifdef __AVX512F__
    if constexpr (std::is_same<C, int8_t>::value)
        if (dim % LANES == 0)
            return each_some(group, [&](auto num, int64_t g) {
                score_int8_keys<num>(query + g * dim, keys, run, dim, scores + g * stride, stride);
            });
#endif
    each_some(group, [&](auto num, int64_t g) {
        score_keys<num>(query + g * dim, keys, run, dim, scores + g * stride, stride);
    });
}

// Multiplies a token's numbers by its scale, for every head of a group: numbers[g * stride + i].
inline void multiply_by_scales(float* numbers, int64_t group, int64_t stride, const loose_float* scales, int64_t run) {
    for (int64_t g = 0; g < group; g++)
        for (int64_t i = 0; i < run; i++) numbers[g * stride + i] *= scales[i];
}

// One query token against some KV heads of its row: all scores first, then the softmax, then all values. The order of
// sums depends on the position alone, so a token's result is equal to the bit however its prompt was cut into chunks.
template <typename C, typename T>
void attend(const PagedAttention<T>& a, const Span<T>& span, const T* q, T* out) {
    const auto key_cache = cache_of<C>(a, a.k_cache), value_cache = cache_of<C>(a, a.v_cache);
    int64_t group = a.num_heads / a.num_kv_heads, heads = group * span.num_kv, dim = a.head_dim;
    int64_t stride = (span.count + LANES - 1) / LANES * LANES;
    float *query = (float*)scratch((2 * heads * dim + heads * stride) * sizeof(float)), *sums = query + heads * dim, *scores = sums + heads * dim;
    for (int64_t g = 0; g < heads; g++)
        for (int64_t d = 0; d < dim; d++) query[g * dim + d] = to_float(q[g * a.q_head + d]) * a.scale;

    span.each_run(key_cache, [&](const CachedRun<C>& keys, int64_t h, int64_t i, int64_t run) {
        int64_t g = h * group;
        score_group(a, q + g * a.q_head, query + g * dim, keys.values, run, scores + g * stride + i, stride);
        if (keys.scales) multiply_by_scales(scores + g * stride + i, group, stride, keys.scales, run);
    });
    span.fetch_first(value_cache);
    if (a.softcap > 0)
        for (int64_t i = 0; i < heads * stride; i += LANES) store(scores + i, softcap(load(scores + i), a.softcap));
    for (int64_t g = 0; g < heads; g++) softmax(scores + g * stride, span.count);
    std::memset(sums, 0, heads * dim * sizeof(float));
    span.each_run(value_cache, [&](const CachedRun<C>& values, int64_t h, int64_t i, int64_t run) {
        float* weights = scores + h * group * stride + i;
        if (values.scales) multiply_by_scales(weights, group, stride, values.scales, run);
        each_some(group, [&](auto num, int64_t g) {
            add_values<num>(values.values, weights + g * stride, stride, run, dim, sums + (h * group + g) * dim);
        });
    });
    for (int64_t d = 0; d < heads * dim; d++) store_one(out + d, sums[d]);
}

}  // namespace

template <typename T>
void attend_short_rows(const PagedAttention<T>& a, const Team& team) {
    // A work item is a row or, if there are few rows, a part of its heads: at least eight items a thread, if possible.
    int64_t group = a.num_heads / a.num_kv_heads;
    int64_t num_kv = std::clamp<int64_t>(a.num_short * a.num_kv_heads / (8 * team.num_threads), 1, a.num_kv_heads);
    int64_t parts = (a.num_kv_heads + num_kv - 1) / num_kv;
    team.take(a.num_short * parts, [&](int64_t item) {
        int64_t row = item / parts, kv_head = item % parts * num_kv, head = kv_head * group;
        for (int64_t token = a.query_start_loc[row]; token < a.query_start_loc[row + 1]; token++) {
            Span<T> span(a, row, token, kv_head, std::min(num_kv, a.num_kv_heads - kv_head));
            T* out = a.out + (token * a.num_heads + head) * a.head_dim;
            const T* q = a.q + token * a.q_token + head * a.q_head;
            a.is_cache_int8 ? attend<int8_t>(a, span, q, out) : attend<T>(a, span, q, out);
        }
    });
}

template void attend_short_rows(const PagedAttention<float>& a, const Team& team);
template void attend_short_rows(const PagedAttention<bf16>& a, const Team& team);
