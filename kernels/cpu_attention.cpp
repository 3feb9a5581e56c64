// Paged attention of short rows on the CPU, a query token at a time. Prompt chunks are cpu_chunks.cpp's.

#include <type_traits>
#include <vector>

#include "cpu_vector.h"

namespace {

struct Attention {
    const int32_t *query_start_loc, *seq_lens, *block_tables;
    int64_t max_blocks, num_heads, num_kv_heads, head_dim, block_size, q_token, q_head, out_token, window;
    float scale, softcap;
};

// Scores of `count` consecutive keys against the query heads of their group. q is float and scaled, [G, head_dim];
// scores[g * stride + i]. HEADS query heads share each load of a key.
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
            for (int64_t e = d; e < head_dim; e++) total += q[g * head_dim + e] * to_float(key[e]);
            scores[g * stride + i] = total;
        }
    }
}

#ifdef __AVX512BF16__
// Lane i of the result is the sum of from[i]: a tree of shuffles, a quarter of the work of sixteen sums of their own.
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
// vectors of each head, stays in registers while the values go by; returns where the next slice begins.
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
            for (int g = 0; g < HEADS; g++) out[g * head_dim + d] += to_float(values[i * head_dim + d]) * weights[g * stride + i];
}

// In place: scores become weights. `count` is padded up to LANES by the caller's buffer.
inline void softmax(float* scores, int64_t count) {
    float best = scores[0];
    for (int64_t i = 1; i < count; i++) best = scores[i] > best ? scores[i] : best;
    int64_t padded = (count + LANES - 1) / LANES * LANES;
    for (int64_t i = count; i < padded; i++) scores[i] = -INFINITY;
    vec total = {};
    for (int64_t i = 0; i < padded; i += LANES) {
        vec e = exp_nonpositive(load(scores + i) - best);
        store(scores + i, e);
        total += e;
    }
    float inverse = 1.0f / sum(total);
    for (int64_t i = 0; i < padded; i += LANES) store(scores + i, load(scores + i) * inverse);
}

// One query token of one row against one KV head: all scores first, then one softmax, then all values. The order of
// sums depends on the position alone, so a token's result is the same to the bit however its prompt was cut in chunks.
template <typename T>
void attend(const Attention& a, const T* q, const T* k_cache, const T* v_cache, T* out, int64_t row, int64_t token,
            int64_t kv_head, std::vector<float>& buffer) {
    int64_t group = a.num_heads / a.num_kv_heads, dim = a.head_dim;
    int64_t position = a.seq_lens[row] - (a.query_start_loc[row + 1] - token);
    int64_t first = a.window && position - a.window + 1 > 0 ? position - a.window + 1 : 0;
    int64_t count = position + 1 - first, stride = (count + LANES - 1) / LANES * LANES;
    buffer.resize(2 * group * dim + group * stride);
    float *query = buffer.data(), *sums = query + group * dim, *scores = sums + group * dim;

    const T* q_from = q + token * a.q_token + kv_head * group * a.q_head;
    for (int64_t g = 0; g < group; g++)
        for (int64_t d = 0; d < dim; d++) query[g * dim + d] = to_float(q_from[g * a.q_head + d]) * a.scale;

    const int32_t* table = a.block_tables + row * a.max_blocks;
    auto slot = [&](int64_t i) {
        int64_t at = first + i;
        return ((table[at / a.block_size] * a.num_kv_heads + kv_head) * a.block_size + at % a.block_size) * dim;
    };
    // Slots within a block are consecutive; heads go in fours, twos and ones.
    auto each_run = [&](auto&& visit) {
        for (int64_t i = 0; i < count;) {
            int64_t run = a.block_size - (first + i) % a.block_size;
            run = run < count - i ? run : count - i;
            visit(slot(i), i, run);
            i += run;
        }
    };
    each_run([&](int64_t at, int64_t i, int64_t run) {
#ifdef __AVX512BF16__
        if constexpr (sizeof(T) == 2) {
            auto score = [&](auto num) {
                for (int64_t g = 0; g < group; g++)
                    score_by_sixteen<num>(q_from + g * a.q_head, k_cache + at, run, a.scale, scores + g * stride + i);
            };
            if (dim == 64) return score(std::integral_constant<int, 2>{});
            if (dim == 128) return score(std::integral_constant<int, 4>{});
        }
#endif
        int64_t g = 0;
        for (; g + 4 <= group; g += 4) score_keys<4>(query + g * dim, k_cache + at, run, dim, scores + g * stride + i, stride);
        for (; g + 2 <= group; g += 2) score_keys<2>(query + g * dim, k_cache + at, run, dim, scores + g * stride + i, stride);
        for (; g < group; g++) score_keys<1>(query + g * dim, k_cache + at, run, dim, scores + g * stride + i, stride);
    });
    if (a.softcap > 0)
        for (int64_t i = 0; i < group * stride; i += LANES) store(scores + i, softcap(load(scores + i), a.softcap));
    for (int64_t g = 0; g < group; g++) softmax(scores + g * stride, count);
    std::memset(sums, 0, group * dim * sizeof(float));
    each_run([&](int64_t at, int64_t i, int64_t run) {
        int64_t g = 0;
        for (; g + 4 <= group; g += 4) add_values<4>(v_cache + at, scores + g * stride + i, stride, run, dim, sums + g * dim);
        for (; g + 2 <= group; g += 2) add_values<2>(v_cache + at, scores + g * stride + i, stride, run, dim, sums + g * dim);
        for (; g < group; g++) add_values<1>(v_cache + at, scores + g * stride + i, stride, run, dim, sums + g * dim);
    });

    T* out_to = out + token * a.out_token + kv_head * group * dim;
    for (int64_t d = 0; d < group * dim; d++) store_one(out_to + d, sums[d]);
}

template <typename T>
void paged_attention(const Attention& a, const T* q, const T* k_cache, const T* v_cache, T* out, int64_t num_rows,
                     int num_threads) {
#pragma omp parallel num_threads(num_threads)
    {
        std::vector<float> buffer;
#pragma omp for schedule(dynamic, 1)
        for (int64_t item = 0; item < num_rows * a.num_kv_heads; item++) {
            int64_t row = item / a.num_kv_heads, kv_head = item % a.num_kv_heads;
            for (int64_t token = a.query_start_loc[row]; token < a.query_start_loc[row + 1]; token++)
                attend(a, q, k_cache, v_cache, out, row, token, kv_head, buffer);
        }
    }
}

}  // namespace

#define ENTRY_POINT(T, SUFFIX)                                                                                         \
    extern "C" void paged_attention_##SUFFIX(                                                                          \
        const void* q, const void* k_cache, const void* v_cache, void* out, const void* query_start_loc,               \
        const void* seq_lens, const void* block_tables, int64_t num_rows, int64_t max_blocks, int64_t num_heads,       \
        int64_t num_kv_heads, int64_t head_dim, int64_t block_size, int64_t q_token, int64_t q_head,                   \
        int64_t out_token, int64_t window, float scale, float softcap, int64_t num_threads) {                          \
        Attention a{(const int32_t*)query_start_loc, (const int32_t*)seq_lens, (const int32_t*)block_tables,           \
                    max_blocks, num_heads, num_kv_heads, head_dim, block_size, q_token, q_head, out_token, window,     \
                    scale, softcap};                                                                                   \
        paged_attention<T>(a, (const T*)q, (const T*)k_cache, (const T*)v_cache, (T*)out, num_rows, (int)num_threads); \
    }

ENTRY_POINT(float, float32)
ENTRY_POINT(bf16, bfloat16)
