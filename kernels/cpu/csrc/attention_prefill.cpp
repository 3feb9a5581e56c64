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
#include "transpose.h"

namespace {

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
    // Accumulators that hide the latency, and fit in the registers.
#ifdef __AVX512F__
    static constexpr int M = V <= 2 ? 8 : 4;
#else
    static constexpr int M = 4;
#endif
    static constexpr int AT_ONCE = 4;         // vectors of weights

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
            ((int32_t*)positions)[r] = int32_t(own);
            ((int32_t*)lasts)[r] = int32_t(last_key(c, own, length));
        }
        vec best[V], total[V];
        for (int v = 0; v < V; v++) best[v] = splat(-1e30f), total[v] = vec{};
        if (c.sinks)
            for (int r = 0; r < V * LANES; r++) ((float*)best)[r] = c.sinks[item.head + r % group], ((float*)total)[r] = 1;
        std::memset(sums, 0, value_dim * V * sizeof(vec));
#ifdef SPLITFUSE_AMX
        if (in_tiles) amx::configure(amx::MOST);
#endif
        const int64_t last_query = position + (end - begin) - 1, stop = last_key(c, last_query, length) + 1;
        int64_t start = first_key(c, position);
        const int64_t kv_head = item.head * c.num_kv_heads / c.num_heads, first = start / TILE * TILE;
        const auto find = [&](Lines& to, int64_t at) {
            c.is_cache_int8 ? to.find<int8_t>(c, row, kv_head, at, start, stop) : to.find<T>(c, row, kv_head, at, start, stop);
        };
        for (int64_t at = first; at < stop; at += TILE) {
            tile = &lines[at / TILE % 2], next = &lines[(at / TILE + 1) % 2];
            if (at == first) find(lines[at / TILE % 2], at);
            if (at + TILE < stop) find(lines[(at / TILE + 1) % 2], at + TILE);
            else next = tile;
            c.is_cache_int8 ? gather<int8_t>() : gather<T>();
            num_keys = in_tiles ? TILE : (tile->to + LANES - 1) / LANES * LANES;
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
    Lines lines[2];
    const Lines *tile, *next;  // the lines of `next` are fetched during the products of `tile`
    const Scalar* keys[TILE];  // in the cache, or in key_rows
    const bool in_tiles;  // true if the processor's tiles (amx.h) compute both products
    // Copies of the tile's rows: [TILE][num_pairs], and [TILE / PACK][value_dim] with PACK keys in a Scalar.
    Scalar *key_rows, *value_rows;
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

    // Copies keys and values of the tile to the buffers of the products, but for keys that these read in the cache.
    template <typename C>
    void gather() {
        const bool is_copied = in_tiles || !std::is_same<C, T>::value || sizeof(Scalar) != PACK * sizeof(C) || dim % PACK;
        for (int64_t i = 0; i < TILE; i++) {
            Scalar* to = key_rows + i * num_pairs;
            keys[i] = is_copied ? to : (const Scalar*)tile->keys[i];
            if (is_copied) copy_key(to, (const C*)tile->keys[i]);
        }
        for (int64_t i = 0; i < TILE; i += PACK)
            copy_values(value_rows + i / PACK * value_dim, (const C*)tile->values[i], (const C*)tile->values[i + PACK - 1]);
    }

    template <typename C>
    void copy_key(Scalar* to, const C* key) {
        if constexpr (PACK == 2) {
            copy((bf16*)to, key, dim);
            if (dim % 2) ((bf16*)to)[dim] = bf16{};
        } else {
            copy(to, key, dim);
        }
    }

    // Copies the values of PACK neighbouring keys, from the first to the last.
    template <typename C>
    void copy_values(Scalar* to, const C* first, const C* last) {
        int64_t d = 0;
        if constexpr (PACK == 2) {
            for (; d + LANES <= value_dim; d += LANES) {
                const uvec both = (uvec)load(first + d) >> 16 | (uvec)load(last + d);
                std::memcpy(to + d, &both, sizeof both);
            }
            for (; d < value_dim; d++) to[d] = bits_of(first[d]) | uint32_t(bits_of(last[d])) << 16;
        } else {
            copy(to, first, value_dim);
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
            for (int64_t i = 0; i < TILE * V; i++) scores[i] *= tile->key_scales[i / V];
            return;
        }
#endif
        for (int64_t key = 0; key < num_keys; key += M) score_keys<M>(key);
    }

    template <int N>
    __attribute__((noinline)) void score_keys(int64_t key) {
        const int64_t bytes = c.is_cache_int8 ? 1 : sizeof(T);
        for (int m = 0; m < N; m++) {
            fetch(next->keys[key + m], dim * bytes);
            fetch(next->values[key + m], value_dim * bytes);
        }
        matmul<N, V, Scalar>(
            [&](int m) { return keys[key + m]; }, 1, query, num_pairs, [](int, int) { return vec{}; },
            [&](int m, int v, vec sum) { scores[(key + m) * V + v] = sum * tile->key_scales[key + m]; });
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
    __attribute__((noinline)) void weigh(vec* best, vec* total) {
        const bool is_int8 = c.is_cache_int8;
        vec top[V], fade[V];
        for (int v = 0; v < V; v++) top[v] = best[v];
        for (int64_t key = 0; key < num_keys; key++)
            for (int v = 0; v < V; v++) top[v] = larger(scores[key * V + v], top[v]);
        for (int v = 0; v < V; v++) {
            fade[v] = exp_nonpositive(best[v] - top[v]);
            best[v] = top[v];
            vec chains[LANES] = {};
            for (int64_t key = 0; key < num_keys; key += LANES)
#pragma GCC unroll 4
                for (int i = 0; i < LANES; i += AT_ONCE) {
                    vec e[AT_ONCE];
                    for (int n = 0; n < AT_ONCE; n++) e[n] = scores[(key + i + n) * V + v] - top[v];
                    exp_nonpositive(e);
                    for (int n = 0; n < AT_ONCE; n++) chains[i + n] += e[n];
                    if (is_int8)
                        for (int n = 0; n < AT_ONCE; n++) e[n] *= tile->value_scales[key + i + n];
                    for (int n = 0; n < AT_ONCE; n += PACK) {
                        Vector& to = weights[(key + i + n) / PACK * V + v];
                        if constexpr (PACK == 2) to = as_pairs(e[n], e[n + 1]);
                        else to = e[n];
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
    __attribute__((noinline)) void add_values(int64_t d, const vec* fade) {
        matmul<N, V, Scalar>(
            [&](int m) { return value_rows + d + m; }, value_dim, weights, num_keys / PACK,
            [&](int m, int v) { return sums[(d + m) * V + v] * fade[v]; },
            [&](int m, int v, vec sum) { sums[(d + m) * V + v] = sum; });
    }

    void write(T* out, int64_t count, int64_t group, const vec* total) {
        for (int64_t d = 0; d < value_dim; d++)
            for (int v = 0; v < V; v++) sums[d * V + v] /= total[v];
        const float* rows = (const float*)key_rows;  // not in use any more
        transpose((const uint32_t*)sums, value_dim, V * LANES, (uint32_t*)rows);
        for (int64_t r = 0; r < count; r++) {
            T* to = out + (r / group * c.num_heads + r % group) * value_dim;
            for (int64_t d = 0; d < value_dim; d += LANES)
                store_part(to + d, load_part(rows + r * value_dim + d, value_dim - d), value_dim - d);
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

SPLITFUSE_OP(paged_attention, PagedAttention)
