// Paged attention of short rows on the CPU, one query token at a time, with the sums of attention.h.
// attention_prefill.cpp does prompt chunks.
//
// Lanes are sixteen keys for the scores, so keys are transposed in registers, and dimensions of the head for the values.

#include <algorithm>

#include "attention.h"
#include "paged_cache.h"
#include "team.h"
#include "transpose.h"

namespace {

constexpr int64_t MAX_HEAD_DIM = 512;

// Sixteen operands of a product from a line of keys or values in the cache, of which `left` numbers remain.
template <typename C>
inline vec floats_of_line(const C* from, int64_t left) {
    if (left >= LANES) return load(from);
    C rest[LANES] = {};
    std::memcpy(rest, from, left * sizeof(C));
    return load(rest);
}
template <typename C>
inline void load_line(const C* from, int64_t left, vec& to) { to = floats_of_line(from, left); }
#ifdef __AVX512BF16__
inline void load_line(const bf16* from, int64_t left, uvec& to) {
    if (left >= 2 * LANES) {
        to = load_vector<uvec>(from);
        return;
    }
    to = uvec{};
    std::memcpy(&to, from, left * sizeof(bf16));
}
inline void load_line(const int8_t* from, int64_t left, uvec& to) {
    const vec low = floats_of_line(from, left), high = left > LANES ? floats_of_line(from + LANES, left - LANES) : vec{};
    to = (uvec)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);  // exact here
}
#endif

// Transposes sixteen lines, from `at` on, to the columns of `to`.
template <typename Lanes, typename C>
inline void transpose_lines(const C* const* lines, int64_t at, int64_t left, Lanes* to, int64_t stride) {
    const auto line = [&](int i) __attribute__((always_inline)) {
        Lanes here;
        load_line(lines[i] + at, left, here);
        return here;
    };
#ifdef __AVX512F__
    transpose_block(line, (uint32_t*)to, stride * LANES);
#else
    uint32_t rows[LANES][LANES];
    for (int i = 0; i < LANES; i++) {
        const Lanes here = line(i);
        std::memcpy(rows[i], &here, sizeof here);
    }
    transpose_16(rows, (uint32_t*)to, stride * LANES);
#endif
}

// The largest lane; no lane is NaN.
inline float largest(vec x) {
#ifdef __AVX512F__
    return _mm512_reduce_max_ps((__m512)x);
#else
    for (int size = LANES / 2; size; size /= 2)
        for (int i = 0; i < size; i++) x[i] = x[i + size] > x[i] ? x[i + size] : x[i];
    return x[0];
#endif
}

inline void fetch(const void* from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char*)from + i);
}

// Calls some(number of heads, first head) for all heads of a group, some heads at a time.
template <typename Some>
inline void each_some(int64_t group, Some&& some) {
    int64_t g = 0;
    for (; g + 4 <= group; g += 4) some(std::integral_constant<int, 4>{}, g);
    for (; g + 3 <= group; g += 3) some(std::integral_constant<int, 3>{}, g);
    for (; g + 2 <= group; g += 2) some(std::integral_constant<int, 2>{}, g);
    for (; g < group; g++) some(std::integral_constant<int, 1>{}, g);
}

// Query token of a row, and the KV heads [kv_head, kv_head + num_kv) that its query heads are attended to.
struct Item {
    int64_t row, token, kv_head, num_kv;
};

// C: type of the cache, T: of the rest.
template <typename C, typename T>
class Attended {
    typedef typename Operand<T>::Scalar Scalar;
    typedef typename Operand<T>::Vector Vector;
    static constexpr int PACK = Operand<T>::PACK;
    static constexpr int PARTS = TILE / LANES;

   public:
    Attended(const PagedAttention<T>& a, const Item& item)
        : a(a), item(item), key_cache(cache_of<C>(a, a.k_cache)), value_cache(cache_of<C>(a, a.v_cache)),
          group(a.num_heads / a.num_kv_heads), dim(a.head_dim), num_pairs((dim + PACK - 1) / PACK),
          position(a.seq_lens[item.row] - 1 - (a.query_start_loc[item.row + 1] - 1 - item.token)) {
        const int64_t heads = group * item.num_kv, columns = (num_pairs + LANES - 1) / LANES * LANES, whole = columns * PACK;
        query = (Scalar*)scratch((heads * (columns + whole) + columns * TILE + group * (TILE + TILE / PACK)) * 4);
        sums = (float*)(query + heads * columns);
        keys = (Vector*)(sums + heads * whole);
        scores = (float*)(keys + columns * PARTS);
        weights = (Scalar*)(scores + group * TILE);
        query_row = columns, sums_row = whole;
    }

    // out [heads][head_dim]
    void attend(const T* q, T* out) {
        pack_query(q);
        const float* sinks = a.sinks ? a.sinks + item.kv_head * group : nullptr;
        const int64_t heads = group * item.num_kv, start = first_key(a, position), stop = position + 1;
        float *best = states, *total = states + heads;
        std::unique_ptr<float[]> many;
        if (2 * heads > MOST_STATES) many.reset(new float[2 * heads]), best = many.get(), total = best + heads;
        for (int64_t i = 0; i < heads; i++) best[i] = sinks ? sinks[i] : -1e30f, total[i] = sinks ? 1 : 0;
        std::memset(sums, 0, heads * sums_row * sizeof(float));
        for (int64_t at = start / TILE * TILE; at < stop; at += TILE)
            for (int64_t head = 0; head < item.num_kv; head++) {
                tile = {at, head, std::max(start - at, int64_t(0)), std::min<int64_t>(stop - at, TILE)};
                find_lines();
                score();
                const bool is_last = head + 1 == item.num_kv;
                if (at + (is_last ? TILE : 0) < stop) fetch_keys(is_last ? at + TILE : at, is_last ? 0 : head + 1, stop);
                for (int64_t g = 0; g < group; g++) weigh(g, best[head * group + g], total[head * group + g]);
                add_values();
            }
        for (int64_t i = 0; i < heads; i++) {
            const vec sum = splat(total[i] > 0 ? total[i] : 1.0f);  // a row that pads sees no key
            for (int64_t d = 0; d < dim; d += LANES) {
                T rounded[LANES];
                store_rounded(rounded, load(sums + i * sums_row + d) / sum);
                std::memcpy(out + i * dim + d, rounded, std::min<int64_t>(dim - d, LANES) * sizeof(T));
            }
        }
    }

   private:
    static constexpr int MOST_STATES = 128;
    const PagedAttention<T>& a;
    const Item& item;
    const PagedCache<C> key_cache, value_cache;
    const int64_t group, dim, num_pairs, position;
    int64_t query_row, sums_row;  // distances of heads
    Scalar* query;    // [heads][query_row]
    float* sums;      // [heads][sums_row]
    Vector* keys;     // the tile's, transposed: [pairs][parts of 16 keys]
    float* scores;    // [group][TILE]
    Scalar* weights;  // [group][TILE / PACK]
    float states[MOST_STATES];
    struct {
        int64_t at, head, from, to;  // the visible keys are [at + from, at + to)
    } tile;
    const C *key_lines[TILE], *value_lines[TILE];
    float key_scales[TILE], value_scales[TILE];
    inline static const C nothing[MAX_HEAD_DIM] = {};

    void pack_query(const T* q) {
        std::memset(query, 0, group * item.num_kv * query_row * sizeof(Scalar));
        for (int64_t i = 0; i < group * item.num_kv; i++) {
            Scalar* to = query + i * query_row;
            const T* from = q + i * a.q_head;
            if constexpr (PACK == 2 || std::is_same<T, float>::value) std::memcpy(to, from, dim * sizeof(T));
            else
                for (int64_t d = 0; d < dim; d++) to[d] = to_float(from[d]);
        }
    }

    // Calls visit(first place in the tile, number of tokens, keys, values) for the tokens of each block.
    template <typename Visit>
    void each_run(int64_t at, int64_t head, int64_t from, int64_t to, Visit visit) const {
        const int32_t* table = a.block_tables + item.row * a.max_blocks;
        for (int64_t i = from, run; i < to; i += run) {
            const int64_t block = (at + i) / a.block_size, offset = (at + i) % a.block_size;
            run = std::min(a.block_size - offset, to - i);
            visit(i, run, key_cache.at(table[block], item.kv_head + head, offset),
                  value_cache.at(table[block], item.kv_head + head, offset));
        }
    }

    // Finds the tile's keys and values, and fetches the values.
    void find_lines() {
        for (int i = 0; i < TILE; i++) key_lines[i] = value_lines[i] = nothing;
        for (int i = 0; i < TILE; i++) key_scales[i] = a.scale, value_scales[i] = 0;
        each_run(tile.at, tile.head, tile.from, tile.to, [&](int64_t i, int64_t run, CachedRun<C> key, CachedRun<C> value) {
            fetch(value.values, run * dim * sizeof(C));
            for (int64_t r = 0; r < run; r++) key_lines[i + r] = key.values + r * dim, value_lines[i + r] = value.values + r * dim;
            if (!key.scales) return;
            for (int64_t r = 0; r < run; r++) key_scales[i + r] = a.scale * key.scales[r], value_scales[i + r] = value.scales[r];
        });
    }

    void fetch_keys(int64_t at, int64_t head, int64_t stop) const {
        each_run(at, head, 0, std::min<int64_t>(stop - at, TILE), [&](int64_t, int64_t run, CachedRun<C> key, CachedRun<C>) {
            fetch(key.values, run * dim * sizeof(C));
        });
    }

    // scores[head][key], -infinity where a key is hidden
    void score() {
        switch ((tile.to + LANES - 1) / LANES) {
            case 1: return score_parts<1>();
            case 2: return score_parts<2>();
            case 3: return score_parts<3>();
            default: return score_parts<PARTS>();
        }
    }

    template <int V>
    void score_parts() {
        for (int v = 0; v < V; v++)
            for (int64_t k = 0; k < num_pairs; k += LANES)
                transpose_lines(key_lines + v * LANES, k * PACK, dim - k * PACK, keys + k * V + v, V);
        const Scalar* first = query + tile.head * group * query_row;
        each_some(group, [&](auto num, int64_t g) __attribute__((always_inline)) {
            vec acc[num][V] = {};
            matmul<num, V, Scalar>([&](int m) { return first + (g + m) * query_row; }, 1, keys, num_pairs, acc);
            for (int m = 0; m < num; m++)
                for (int v = 0; v < V; v++) store(scores + (g + m) * TILE + v * LANES, acc[m][v] * load(key_scales + v * LANES));
        });
        if (a.softcap != 0)
            for (int64_t g = 0; g < group; g++)
                for (int v = 0; v < V; v++) {
                    float* here = scores + g * TILE + v * LANES;
                    store(here, softcap(load(here), a.softcap));
                }
        if (tile.from == 0 && tile.to == V * LANES && V == PARTS) return;
        for (int64_t g = 0; g < group; g++) {
            for (int64_t i = 0; i < tile.from; i++) scores[g * TILE + i] = -INFINITY;
            for (int64_t i = tile.to; i < TILE; i++) scores[g * TILE + i] = -INFINITY;
        }
    }

    // Merges the tile's softmax into a head's running one: its weights, and its sums so far.
    void weigh(int64_t g, float& best, float& total) {
        vec s[PARTS], top = splat(best), chains = {};
        for (int v = 0; v < PARTS; v++) {
            s[v] = load(scores + g * TILE + v * LANES);
            top = where(s[v] > top, s[v], top);
        }
        top = splat(largest(top));
        for (int v = 0; v < PARTS; v++) {
            vec e = exp_nonpositive(s[v] - top);
            chains += e;
            if (PagedCache<C>::HAS_SCALES) e *= load(value_scales + v * LANES);
            if constexpr (PACK == 2) {
                const hvec half = __builtin_convertvector(as_bf16(e), hvec);
                std::memcpy(weights + g * TILE / 2 + v * LANES / 2, &half, sizeof half);
            } else {
                store(weights + g * TILE + v * LANES, e);
            }
        }
        const vec fade = exp_nonpositive(splat(best) - top);
        best = top[0];
        total = fma(splat(total), fade, splat(sum(chains)))[0];
        float* own = sums + (tile.head * group + g) * sums_row;
        for (int64_t d = 0; d < dim; d += LANES) store(own + d, load(own + d) * fade);
    }

    void add_values() {
        each_some(group, [&](auto num, int64_t g) __attribute__((always_inline)) {
            float* own = sums + (tile.head * group + g) * sums_row;
            int64_t d = 0;
            for (; d + 4 * LANES <= dim; d += 4 * LANES) add_slice<num, 4>(own + d, g, d);
            for (; d < dim; d += LANES) add_slice<num, 1>(own + d, g, d);
        });
    }

    // Adds weight · value for NUM vectors of a head, from dimension d on, which stay in registers over all keys.
    template <int HEADS, int NUM>
    void add_slice(float* own, int64_t g, int64_t d) {
        vec acc[HEADS][NUM];
        for (int h = 0; h < HEADS; h++)
            for (int n = 0; n < NUM; n++) acc[h][n] = load(own + h * sums_row + n * LANES);
        const Scalar* weight = weights + g * TILE / PACK;
        for (int64_t i = tile.from / PACK * PACK; i < tile.to; i += PACK) {
            Vector lanes[NUM];
            for (int n = 0; n < NUM; n++) lanes[n] = values_at(i, d + n * LANES, NUM > 1 ? LANES : dim - d);
            for (int h = 0; h < HEADS; h++)
                for (int n = 0; n < NUM; n++)
                    acc[h][n] = multiply_add(acc[h][n], lanes[n], weight[(h * TILE + i) / PACK]);
        }
        for (int h = 0; h < HEADS; h++)
            for (int n = 0; n < NUM; n++) store(own + h * sums_row + n * LANES, acc[h][n]);
    }

    // Values of PACK keys from i on, for dimensions from d on.
    inline __attribute__((always_inline)) Vector values_at(int64_t i, int64_t d, int64_t left) const {
        if constexpr (PACK == 2) {
            const uvec low = (uvec)floats_of_line(value_lines[i] + d, left), high = (uvec)floats_of_line(value_lines[i + 1] + d, left);
            return low >> 16 | high;  // values have bfloat16's precision, so their lower halves are zero
        } else {
            return floats_of_line(value_lines[i] + d, left);
        }
    }
};

template <typename C, typename T>
void attend_token(const PagedAttention<T>& a, const Item& item) {
    const int64_t head = item.kv_head * (a.num_heads / a.num_kv_heads);
    Attended<C, T>(a, item).attend(
        a.q + item.token * a.q_token + head * a.q_head, a.out + (item.token * a.num_heads + head) * a.head_dim);
}

}  // namespace

template <typename T>
void attend_short_rows(const PagedAttention<T>& a, const Team& team) {
    // A work item is a row or, if there are few rows, a part of its heads: at least eight items a thread, if possible.
    int64_t num_kv = std::clamp<int64_t>(a.num_short * a.num_kv_heads / (8 * team.num_threads), 1, a.num_kv_heads);
    int64_t parts = (a.num_kv_heads + num_kv - 1) / num_kv;
    team.take(a.num_short * parts, [&](int64_t number) {
        Item item{number / parts, 0, number % parts * num_kv, 0};
        item.num_kv = std::min(num_kv, a.num_kv_heads - item.kv_head);
        for (item.token = a.query_start_loc[item.row]; item.token < a.query_start_loc[item.row + 1]; item.token++)
            a.is_cache_int8 ? attend_token<int8_t>(a, item) : attend_token<T>(a, item);
    });
}

template void attend_short_rows(const PagedAttention<float>& a, const Team& team);
template void attend_short_rows(const PagedAttention<bf16>& a, const Team& team);
