// Attention of prompt chunks on the CPU: many queries of one row over its cached keys, in tiles (Dao et al. 2022,
// FlashAttention: running maximum and sum, so a tile of scores never leaves the cache).
//
// Everything is transposed: a vector's lanes are 16 query rows (a query row = one token and one head of the group), so
// keys and values are read in the order of their blocks, and the softmax runs down the lanes without a horizontal sum.
// Pairs (matmul.h) are two neighbours of D for the scores, two neighbouring keys for the values. If the processor has
// tiles, they compute both products: keys and values are their rows, queries and weights their panels. A value of int8
// is multiplied without its scale, which multiplies its weights before these are rounded. Tiles begin at multiples of
// TILE keys whatever the chunk, so a token's result does not depend on how its prompt was cut.

#include <vector>

#include "attention.h"
#include "paged_cache.h"
#include "team.h"
#include "transpose.h"

namespace {

constexpr int64_t MAX_HEAD_DIM = 1024;

// Query tokens [begin, end) of a row, and heads [head, head + num_heads), which share a KV head: at most TILE queries.
struct Item {
    int64_t row, begin, end, head, num_heads;
    int64_t num_queries() const { return (end - begin) * num_heads; }
};

template <typename T, int V>
class Tile {
    typedef typename Operand<T>::Scalar Scalar;
    typedef typename Operand<T>::Vector Vector;
    static constexpr int PACK = Operand<T>::PACK;
    static constexpr int M = V <= 2 ? 8 : 4;  // accumulators that hide the latency

   public:
    explicit Tile(const PagedAttention<T>& c)
        : c(c), dim(c.head_dim), value_dim(c.value_dim ? c.value_dim : dim), num_pairs((dim + PACK - 1) / PACK),
          in_tiles(uses_tiles<T>(dim) && uses_tiles<T>(value_dim)) {
        const size_t values = TILE * num_pairs * PACK * sizeof(float);
        size_t sizes[] = {num_pairs * V * sizeof(Vector), TILE * V * sizeof(vec), TILE / PACK * V * sizeof(Vector),
                          value_dim * V * sizeof(vec), values, values, in_tiles ? values : 0};
        size_t total = 0;
        for (size_t size : sizes) total += (size + 63) / 64 * 64;
        char* at = (char*)scratch(total);
        char* parts[7];
        for (int i = 0; i < 7; i++) parts[i] = at, at += (sizes[i] + 63) / 64 * 64;
        query = (Vector*)parts[0], scores = (vec*)parts[1], weights = (Vector*)parts[2], sums = (vec*)parts[3];
        key_rows = (Scalar*)parts[4], value_rows = (Scalar*)parts[5], value_columns = (Scalar*)parts[6];
    }

    void attend(const Item& item) {
        const int64_t row = item.row, begin = item.begin, end = item.end, group = item.num_heads, count = item.num_queries();
        const int64_t length = c.seq_lens[row], position = length - (c.query_start_loc[row + 1] - begin);  // of token `begin`
        const T* first_q = c.q + begin * c.q_token + item.head * c.q_head;
        auto query_at = [&](int64_t r) { return first_q + r / group * c.q_token + r % group * c.q_head; };
        pack_query(query_at, count);
        ivec positions[V], lasts[V];  // of each query: its own position, and that of the last key that it sees
        for (int r = 0; r < V * LANES; r++) {
            const int64_t own = position + (r < count ? r : count - 1) / group;
            positions[r / LANES][r % LANES] = int32_t(own);
            lasts[r / LANES][r % LANES] = int32_t(last_key(c, own, length));
        }
        vec best[V], total[V];
        for (int v = 0; v < V; v++) best[v] = splat(-1e30f), total[v] = vec{};
        if (c.sinks)
            for (int r = 0; r < V * LANES; r++) best[r / LANES][r % LANES] = c.sinks[item.head + r % group], total[r / LANES][r % LANES] = 1;
        std::memset(sums, 0, value_dim * V * sizeof(vec));
#ifdef SPLITFUSE_AMX
        if (in_tiles) amx::configure(amx::MOST);
#endif
        const int64_t last_query = position + (end - begin) - 1, stop = last_key(c, last_query, length) + 1;
        int64_t start = first_key(c, position);
        for (int64_t at = start / TILE * TILE; at < stop; at += TILE) {
            int64_t from = start > at ? start - at : 0, to = stop - at < TILE ? stop - at : TILE;
            const int64_t kv_head = item.head * c.num_kv_heads / c.num_heads;
            c.is_cache_int8 ? gather<int8_t>(row, kv_head, at, from, to) : gather<T>(row, kv_head, at, from, to);
            num_keys = in_tiles ? TILE : (to + M - 1) / M * M;
            score();
            bool is_whole = at + TILE - 1 <= lasts[0][0] && !(c.window && at <= last_query - c.window);
            finish_scores(is_whole ? nullptr : positions, lasts, at);
            weigh(best, total);
        }
#ifdef SPLITFUSE_AMX
        if (in_tiles) _tile_release();
#endif
        write(c.out + (begin * c.num_heads + item.head) * value_dim, count, group, total);
    }

   private:
    const PagedAttention<T>& c;
    const int64_t dim, value_dim, num_pairs;
    Vector *query, *weights;
    vec *scores, *sums;
    int64_t num_keys;  // visible keys of the tile: none is behind the last key that the last query sees
    float key_scales[TILE], value_scales[TILE];  // the tile's factors of a score, and of an int8 value
    const bool in_tiles;  // true if the processor's tiles (amx.h) compute both products
    Scalar *key_rows, *value_rows;  // the tile's rows: [TILE][num_pairs], and [TILE / PACK][value_dim] with PACK keys in a Scalar
    Scalar* value_columns;  // value_rows transposed, for tiles: [value_dim][TILE / PACK]

    template <typename At>
    void pack_query(At query_at, int64_t count) {
        Scalar* rows = value_rows;  // not in use yet
        std::memset(rows, 0, V * LANES * num_pairs * sizeof(Scalar));
        for (int64_t r = 0; r < count; r++) {
            const T* from = query_at(r);
            if constexpr (PACK == 2) std::memcpy(rows + r * num_pairs, from, dim * sizeof(T));
            else
                for (int64_t d = 0; d < dim; d++) rows[r * num_pairs + d] = to_float(from[d]);
        }
        transpose((const uint32_t*)rows, V * LANES, num_pairs, (uint32_t*)query);
    }

    // Gathers keys and values [from, to) of the tile; the others become zero, because their slots may hold anything.
    template <typename C>
    void gather(int64_t row, int64_t kv_head, int64_t at, int64_t from, int64_t to) {
        const int32_t* table = c.block_tables + row * c.max_blocks;
        const auto key_cache = cache_of<C>(c, c.k_cache), value_cache = cache_of<C>(c, c.v_cache);
        static C nothing[MAX_HEAD_DIM] = {};
        for (int64_t i = 0; i < TILE; i += PACK) {
            const C *keys[PACK], *values[PACK];
            for (int p = 0; p < PACK; p++) {
                CachedRun<C> key = {nothing, nullptr}, value = key;
                if (i + p >= from && i + p < to) {
                    const int64_t block = table[(at + i + p) / c.block_size], offset = (at + i + p) % c.block_size;
                    key = key_cache.at(block, kv_head, offset), value = value_cache.at(block, kv_head, offset);
                }
                keys[p] = key.values, values[p] = value.values;
                key_scales[i + p] = key.scales ? c.scale * *key.scales : c.scale;
                value_scales[i + p] = value.scales ? float(*value.scales) : 0;
            }
            widen(i, keys, values);
        }
    }

    // Copies keys i and i + PACK - 1, and the values of both, to the buffers of the products.
    template <typename C>
    void widen(int64_t i, const C* const* keys, const C* const* values) {
        if constexpr (PACK == 2) {
            for (int p = 0; p < 2; p++) {
                bf16* to = (bf16*)(key_rows + (i + p) * num_pairs);
                copy(to, keys[p], dim);
                if (dim % 2) to[dim] = bf16{};
            }
            uint32_t* together = (uint32_t*)(value_rows + i / 2 * value_dim);
            int64_t d = 0;
            if constexpr (std::is_same<C, int8_t>::value)
                for (; d + LANES <= value_dim; d += LANES) {
                    const uvec low = (uvec)load(values[0] + d), high = (uvec)load(values[1] + d);
                    const uvec both = low >> 16 | (high & 0xffff0000u);
                    std::memcpy(together + d, &both, sizeof both);
                }
            for (; d < value_dim; d++) together[d] = bits_of(values[0][d]) | uint32_t(bits_of(values[1][d])) << 16;
        } else {
            copy((float*)key_rows + i * dim, keys[0], dim);
            copy((float*)value_rows + i * value_dim, values[0], value_dim);
        }
    }

    static uint16_t bits_of(bf16 x) { return x.bits; }
    static uint16_t bits_of(int8_t x) {
        bf16 rounded;  // exact here
        store_one(&rounded, x);
        return rounded.bits;
    }

    template <typename To, typename C>
    void copy(To* to, const C* from, int64_t width) {
        if constexpr (std::is_same<To, C>::value) {
            std::memcpy(to, from, width * sizeof(C));
        } else {
            int64_t d = 0;
            for (; d + LANES <= width; d += LANES) store(to + d, load(from + d));
            for (; d < width; d++) store_one(to + d, to_float(from[d]));
        }
    }

    // scores[key][lane] = key · query
    void score() {
#ifdef SPLITFUSE_AMX
        if (in_tiles) {
            amx::multiply<V>((const uint32_t*)key_rows, (const uint32_t*)query, num_pairs, (float*)scores, TILE, false);
            for (int64_t i = 0; i < TILE * V; i++) scores[i] *= key_scales[i / V];
            return;
        }
#endif
        for (int64_t key = 0; key < num_keys; key += M) score_keys<M>(key);
    }

    template <int N>
    void score_keys(int64_t key) {
        vec acc[N][V] = {};
        matmul<N, V, Scalar>([&](int m) { return key_rows + (key + m) * num_pairs; }, 1, query, num_pairs, acc);
        for (int m = 0; m < N; m++)
            for (int v = 0; v < V; v++) scores[(key + m) * V + v] = acc[m][v] * key_scales[key + m];
    }

    // Applies the soft-cap (Gemma 2), then hides keys that a query must not see.
    void finish_scores(const ivec* positions, const ivec* lasts, int64_t at) {
        if (c.softcap != 0)
            for (int64_t i = 0; i < num_keys * V; i++) scores[i] = ::softcap(scores[i], c.softcap);
        if (!positions) return;
        for (int64_t key = 0; key < num_keys; key++)
            for (int v = 0; v < V; v++) {
                ivec here = ivec{} + int32_t(at + key);
                ivec hidden = here > lasts[v];
                if (c.window) hidden |= here <= positions[v] - int32_t(c.window);
                scores[key * V + v] = (vec)((hidden & (ivec)splat(-INFINITY)) | (~hidden & (ivec)scores[key * V + v]));
            }
    }

    // Merges the tile's softmax into the running one; sums[d][lane] = sums · (old scale) + sum over keys of weight ·
    // value.
    void weigh(vec* best, vec* total) {
        vec fade[V];
        for (int v = 0; v < V; v++) {
            vec top = best[v];
            for (int64_t key = 0; key < num_keys; key++) {
                vec s = scores[key * V + v];
                ivec more = s > top;
                top = (vec)((more & (ivec)s) | (~more & (ivec)top));
            }
            fade[v] = exp_nonpositive(best[v] - top);
            best[v] = top;
            vec chains[LANES] = {};
            for (int lane = 0; lane < LANES; lane += PACK)
                for (int64_t key = lane; key < num_keys; key += LANES) {
                    vec e = exp_nonpositive(scores[key * V + v] - top);
                    chains[lane] += e;
                    if (c.is_cache_int8) e *= value_scales[key];
                    if constexpr (PACK == 2) {
                        vec next = exp_nonpositive(scores[(key + 1) * V + v] - top);
                        chains[lane + 1] += next;
                        if (c.is_cache_int8) next *= value_scales[key + 1];
                        weights[key / 2 * V + v] = as_bf16(e) | as_bf16(next) << 16;
                    } else {
                        weights[key * V + v] = e;
                    }
                }
            for (int size = LANES / 2; size; size /= 2)
                for (int lane = 0; lane < size; lane++) chains[lane] += chains[lane + size];
            total[v] = fma(total[v], fade[v], chains[0]);
        }
#ifdef SPLITFUSE_AMX
        if (in_tiles) {
            for (int64_t i = 0; i < value_dim * V; i++) sums[i] *= fade[i % V];
            transpose((const uint32_t*)value_rows, TILE / PACK, value_dim, (uint32_t*)value_columns);
            amx::multiply<V>((const uint32_t*)value_columns, (const uint32_t*)weights, TILE / PACK, (float*)sums, value_dim, true);
            return;
        }
#endif
        int64_t d = 0;
        for (; d + M <= value_dim; d += M) add_values<M>(d, fade);
        for (; d < value_dim; d++) add_values<1>(d, fade);
    }

    template <int N>
    void add_values(int64_t d, const vec* fade) {
        vec acc[N][V];
        for (int m = 0; m < N; m++)
            for (int v = 0; v < V; v++) acc[m][v] = sums[(d + m) * V + v] * fade[v];
        matmul<N, V, Scalar>([&](int m) { return value_rows + d + m; }, value_dim, weights, num_keys / PACK, acc);
        for (int m = 0; m < N; m++)
            for (int v = 0; v < V; v++) sums[(d + m) * V + v] = acc[m][v];
    }

    void write(T* out, int64_t count, int64_t group, const vec* total) {
        for (int64_t d = 0; d < value_dim; d++)
            for (int v = 0; v < V; v++) sums[d * V + v] /= total[v];
        const float* rows = (const float*)key_rows;  // not in use any more
        transpose((const uint32_t*)sums, value_dim, V * LANES, (uint32_t*)rows);
        for (int64_t r = 0; r < count; r++) {
            T* to = out + (r / group * c.num_heads + r % group) * value_dim;
            int64_t d = 0;
            for (; d + LANES <= value_dim; d += LANES) store_rounded(to + d, load(rows + r * value_dim + d));
            for (; d < value_dim; d++) store_one(to + d, rows[r * value_dim + d]);
        }
    }
};

// Splits the items that remain after whole rounds of the threads, by heads or else by tokens, so that fewer threads wait at
// the end: 16 tokens of 9 heads, in groups of 3, are three items.
void split_last(std::vector<Item>& items, int64_t num_threads) {
    const int64_t num_last = int64_t(items.size()) % num_threads, parts = num_last ? (num_threads + num_last - 1) / num_last : 1;
    const std::vector<Item> last(items.end() - num_last, items.end());
    items.resize(items.size() - num_last);
    for (const Item& item : last) {
        const bool is_by_heads = item.num_heads >= parts;
        const int64_t count = is_by_heads ? item.num_heads : item.end - item.begin;
        for (int64_t part = 0; part < parts; part++) {
            const int64_t from = count * part / parts, to = count * (part + 1) / parts;
            if (from == to) continue;
            if (is_by_heads) items.push_back({item.row, item.begin, item.end, item.head + from, to - from});
            else items.push_back({item.row, item.begin + from, item.begin + to, item.head, item.num_heads});
        }
    }
}

template <typename T>
void attend_long_rows(const PagedAttention<T>& c, int64_t num_short, const Team& team) {
    const int64_t group = c.num_heads / c.num_kv_heads, num_queries = c.query_start_loc[c.num_rows] - c.query_start_loc[num_short];
    // Whole tiles of a few tokens' heads would leave threads without work.
    const int64_t size = num_queries * c.num_heads < TILE * 2 * team.num_threads ? LANES : TILE;
    const int64_t most = group < size ? group : size, step = TILE / most;
    std::vector<Item> items;
    for (int64_t row = num_short; row < c.num_rows; row++)
        // The last tokens see the most keys, so they run first and no thread is left with them at the end.
        for (int64_t begin, first = c.query_start_loc[row], end = c.query_start_loc[row + 1]; end > first; end = begin) {
            begin = end - step > first ? end - step : first;
            for (int64_t head = 0, num_heads; head < c.num_heads; head += num_heads) {
                int64_t left = group - head % group;
                num_heads = left < most ? left : most;
                items.push_back({row, begin, end, head, num_heads});
            }
        }
    split_last(items, team.num_threads);
    team.take(int64_t(items.size()), [&](int64_t i) {
        auto run = [&](auto&& tile) { tile.attend(items[i]); };
        int64_t count = items[i].num_queries();
        if (count <= LANES) run(Tile<T, 1>(c));
        else if (count <= 2 * LANES) run(Tile<T, 2>(c));
        else if (count <= 3 * LANES) run(Tile<T, 3>(c));
        else run(Tile<T, 4>(c));
    });
}

template <typename T>
void paged_attention(const PagedAttention<T>& a, const Team* team) {
    together(team, a.num_threads, [&](const Team& team) {
        const int64_t num_short = uses_tiles<T>(a.head_dim) ? 0 : a.num_short;
        if (num_short) attend_short_rows(a, team);
        if (num_short && num_short < a.num_rows) team.barrier();
        if (num_short < a.num_rows) attend_long_rows(a, num_short, team);
    });
}

}  // namespace

extern "C" void paged_attention_float32(const PagedAttention<float>& a, const Team* team) { paged_attention(a, team); }
extern "C" void paged_attention_bfloat16(const PagedAttention<bf16>& a, const Team* team) { paged_attention(a, team); }
