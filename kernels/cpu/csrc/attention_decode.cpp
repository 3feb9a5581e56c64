// Paged attention of short rows on the CPU, one query token at a time, with the sums of attention.h.
// attention_prefill.cpp does prompt chunks.
//
// Lanes are sixteen keys for the scores, so keys are transposed in registers, and dimensions of the head for the values.

#include <algorithm>
#include <thread>

#include "attention.h"
#include "transpose.h"

namespace {

// Numbers of a line that a column of dwords has, and the operands of products in a column: floats, or pairs of bfloat16.
// Int8 that are multiplied in such pairs become bfloat16 before, or after if the processor has tables for it.
#if defined(__AVX512VBMI__) && defined(__AVX512BF16__)
constexpr bool HAS_TABLES = true;
#else
constexpr bool HAS_TABLES = false;
#endif
template <typename C, typename T>
struct Columns {
    static constexpr bool ARE_PAIRS = sizeof(C) == 1 && Operand<T>::PACK == 2;  // of int8
    static constexpr bool IS_WIDENED = ARE_PAIRS && !HAS_TABLES, IN_HALVES = ARE_PAIRS && HAS_TABLES;
    static constexpr int PER_DWORD = IS_WIDENED ? 2 : 4 / sizeof(C), OPERANDS = PER_DWORD / Operand<T>::PACK;
    static constexpr int64_t NUMBERS = LANES * PER_DWORD;
};

#if defined(__AVX512VBMI__) && defined(__AVX512BF16__)
// Bytes of bfloat16 0 to 127; a cache has no -128 (int8_cache.py).
struct Tables {
    alignas(64) uint8_t low[128], high[128];
    constexpr Tables() : low(), high() {
        for (int i = 1; i < 128; i++) {
            int exponent = 0;
            while (i >> (exponent + 1)) exponent++;
            const int bits = (127 + exponent) << 7 | (i << (7 - exponent) & 127);
            low[i] = uint8_t(bits), high[i] = uint8_t(bits >> 8);
        }
    }
};
constexpr Tables BF16_OF_INT8;

// bfloat16 of 64 int8, by eights of a quarter: the first ones of all quarters, then the second ones.
inline __attribute__((always_inline)) void bf16_of_bytes(uvec x, uvec* first, uvec* second) {
    const auto table = [](const uint8_t* from, __m512i at) __attribute__((always_inline)) {
        return _mm512_permutex2var_epi8(_mm512_load_si512(from), at, _mm512_load_si512(from + 64));
    };
    const __m512i bytes = (__m512i)x, size = _mm512_abs_epi8(bytes), sign = _mm512_set1_epi8(-128);
    const __m512i low = table(BF16_OF_INT8.low, size);
    const __m512i high = _mm512_ternarylogic_epi32(table(BF16_OF_INT8.high, size), bytes, sign, 0xf8);  // | bytes & sign
    *first = (uvec)_mm512_unpacklo_epi8(low, high), *second = (uvec)_mm512_unpackhi_epi8(low, high);
}
#endif

// 64 bytes of a line, of which `left` remain.
inline uvec bytes_of_line(const void* from, int64_t left) {
    if (left >= int64_t(sizeof(uvec))) return load_vector<uvec>(from);
#ifdef __AVX512BW__
    return (uvec)_mm512_maskz_loadu_epi8((uint64_t(1) << left) - 1, from);
#else
    uvec rest = {};
    std::memcpy(&rest, from, left);
    return rest;
#endif
}

// Transposes dwords of sixteen lines, from number `at` on: lane i of column k is the k'th dword of line i.
template <typename C, typename T>
inline __attribute__((always_inline)) void columns_of_lines(const void* const* lines, int64_t at, int64_t left, uvec* columns) {
    const auto line = [&](int i) __attribute__((always_inline)) {
#ifdef __AVX512BF16__
        if constexpr (Columns<C, T>::IS_WIDENED) {
            const C* here = (const C*)lines[i] + at;
            const vec low = load_part(here, left), high = left > LANES ? load_part(here + LANES, left - LANES) : vec{};
            return (uvec)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);  // exact here
        }
#endif
        return bytes_of_line((const C*)lines[i] + at, left * sizeof(C));
    };
#ifdef __AVX512F__
    transpose_block<Columns<C, T>::IN_HALVES>(line, (uint32_t*)columns, LANES);
#else
    uint32_t rows[LANES][LANES];
    for (int i = 0; i < LANES; i++) {
        store_vector(rows[i], line(i));
    }
    transpose_16(rows, (uint32_t*)columns, LANES);
#endif
}

#ifdef __AVX512BW__
// columns_of_lines for the last numbers of int8 lines, of which `left` remain: four columns of sixteen numbers each time.
template <typename T>
inline __attribute__((always_inline)) void columns_of_rests(const void* const* lines, int64_t at, int64_t left, uvec* columns) {
    for (; left > 0; at += 16, left -= 16, columns += 4) {
        const __mmask16 mask = left >= 16 ? 0xffff : (1 << left) - 1;
        const auto quarter = [&](int i) __attribute__((always_inline)) { return _mm_maskz_loadu_epi8(mask, (const int8_t*)lines[i] + at); };
        __m512i four[4];
        for (int i = 0; i < 4; i++) {
            four[i] = _mm512_castsi128_si512(quarter(i));
            four[i] = _mm512_inserti32x4(four[i], quarter(4 + i), 1);
            four[i] = _mm512_inserti32x4(four[i], quarter(8 + i), 2);
            four[i] = _mm512_inserti32x4(four[i], quarter(12 + i), 3);
        }
        transpose_quarters<Columns<int8_t, T>::IN_HALVES>(four);
        for (int i = 0; i < 4; i++) columns[i] = (uvec)four[i];
    }
}
#endif

// Floats of byte J of each lane, an int8.
template <int J>
inline vec floats_of_bytes(uvec x) {
#ifdef __AVX512BW__
    // Bytes without a sign become the low bits of 2^23.
    const __m512i of_byte = _mm512_set4_epi32(12 + J, 8 + J, 4 + J, J), base = _mm512_set1_epi32(0x4b000000);
    const __m512i placed = _mm512_mask_shuffle_epi8(base, 0x1111111111111111u, (__m512i)(x ^ 0x80808080u), of_byte);
    return (vec)placed - splat(0x1p23f + 128);
#else
    return convert<vec>((ivec)(x << (24 - 8 * J)) >> 24);
#endif
}

// Operands of the products of a column.
template <typename C, typename T>
inline __attribute__((always_inline)) void operands_of_column(uvec column, typename Operand<T>::Vector* to) {
    if constexpr (Columns<C, T>::OPERANDS == 4) {
        to[0] = floats_of_bytes<0>(column), to[1] = floats_of_bytes<1>(column);
        to[2] = floats_of_bytes<2>(column), to[3] = floats_of_bytes<3>(column);
#if defined(__AVX512VBMI__) && defined(__AVX512BF16__)
    } else if constexpr (Columns<C, T>::IN_HALVES) {
        bf16_of_bytes(column, &to[0], &to[1]);
#endif
    } else if constexpr (Columns<C, T>::OPERANDS == 2) {
        to[0] = (vec)(column << 16), to[1] = (vec)(column & 0xffff0000u);
    } else {
        to[0] = (typename Operand<T>::Vector)column;
    }
}

// The largest lane; no lane is NaN.
inline float largest(vec x) {
#ifdef __AVX512F__
    return _mm512_reduce_max_ps((__m512)x);
#else
    return across(x, [](auto a, auto b) { return b > a ? b : a; });
#endif
}

constexpr int64_t LINE = 64;  // bytes of a cache line
constexpr int64_t LONG = 16;  // tiles of a row from which on more is fetched ahead, and two threads may share an item

// Calls some(number of heads, first head) for all heads of a group, some heads at a time.
template <typename Some>
inline void each_some(int64_t group, Some&& some) {
    int64_t g = 0;
    for (; g + 4 <= group; g += 4) some(std::integral_constant<int, 4>{}, g);
    for (; g + 3 <= group; g += 3) some(std::integral_constant<int, 3>{}, g);
    for (; g + 2 <= group; g += 2) some(std::integral_constant<int, 2>{}, g);
    for (; g < group; g++) some(std::integral_constant<int, 1>{}, g);
}

// Query token of a row, and the KV heads [kv_head, kv_head + num_kv) that its query heads are attended to: by one thread,
// or by two, of which one has the keys and hands the scores over to the other.
struct Item {
    int64_t row, token, kv_head, num_kv;
    bool has_keys, has_values;
    float* scores;                    // [tiles of all tokens][group][TILE] that are handed over, or null
    std::atomic<int64_t>* num_ready;  // tiles with scores
    int64_t num_tiles;                // tiles so far
};

// C: type of the cache, T: of the rest.
template <typename C, typename T>
class Attended {
    typedef typename Operand<T>::Scalar Scalar;
    typedef typename Operand<T>::Vector Vector;
    static constexpr int PACK = Operand<T>::PACK;
    static constexpr int PARTS = TILE / LANES;
    // Vectors of values that are read at a time, in the order of sums_at; a rest of dimensions has one at a time, in order.
#ifdef __AVX512BW__
    static constexpr int STEP = Columns<C, T>::IN_HALVES ? 4 : PACK == 2 && std::is_same<C, bf16>::value ? 2 : 1;
#else
    static constexpr int STEP = 1;
#endif

   public:
    Attended(const PagedAttention<T>& a, Item& item)
        : a(a), item(item), group(a.num_heads / a.num_kv_heads), dim(a.head_dim), num_pairs((dim + PACK - 1) / PACK),
          position(a.seq_lens[item.row] - 1 - (a.query_start_loc[item.row + 1] - 1 - item.token)) {
        const int64_t heads = group * item.num_kv, columns = (num_pairs + LANES - 1) / LANES * LANES, whole = columns * PACK;
        state_row = (group + LANES - 1) / LANES * LANES;
        query = (Scalar*)scratch((heads * (columns + whole) + group * (TILE + TILE / PACK) + state_row * (3 + 2 * item.num_kv)) * 4);
        sums = (float*)(query + heads * columns);
        scores = sums + heads * whole;
        weights = (Scalar*)(scores + group * TILE);
        fades = (float*)(weights + group * TILE / PACK);
        tops = fades + state_row, tile_totals = tops + state_row, bests = tile_totals + state_row;
        totals = bests + item.num_kv * state_row;
        query_row = columns, sums_row = whole;
    }

    // out [heads][head_dim]
    void attend(const T* q, T* out) {
        pack_query(q);
        const float* sinks = a.sinks ? a.sinks + item.kv_head * group : nullptr;
        const int64_t heads = group * item.num_kv, start = first_key(a, position), stop = position + 1;
        std::fill(tops, totals, -1e30f);
        std::fill(tile_totals, bests, 0.0f);
        for (int64_t i = 0; i < item.num_kv * state_row; i++) totals[i] = sinks ? 1 : 0;
        for (int64_t i = 0; sinks && i < heads; i++) bests[i / group * state_row + i % group] = sinks[i];
        std::memset(sums, 0, heads * sums_row * sizeof(float));
        const int64_t first = start / TILE * TILE, count = (stop - first + TILE - 1) / TILE * item.num_kv;
        for (int64_t number = 0, num_found = 0; number < count; number++) {
            for (; num_found < std::min(number + NUM_LINES, count); num_found++)
                lines[num_found % NUM_LINES].template find_lines<C>(
                    a, item.row, item.kv_head + num_found % item.num_kv, first + num_found / item.num_kv * TILE, start, stop);
            const auto lines_of = [&](int64_t of) { return &lines[std::min(of, count - 1) % NUM_LINES]; };
            tile = lines_of(number), head = number % item.num_kv;
            const Lines *next = lines_of(number + 1), *far = lines_of(number + 2);
            during_scores = item.has_values ? Ahead{tile->values, far->values} : Ahead{next->keys, far->keys};
            during_sums = item.has_keys ? Ahead{next->keys, far->keys} : Ahead{next->values, far->values};
            if (count < LONG * item.num_kv) during_scores.far = during_sums.far = nullptr;
            if (PagedCache<C>::HAS_SCALES) lines[number % NUM_LINES].template find_scales<C>(a, item.row, item.kv_head + head);
            if (item.scores) scores = item.scores + item.num_tiles++ * group * TILE;
            if (item.has_keys) score();
            if (!item.has_values) item.num_ready->store(item.num_tiles, std::memory_order_release);
            if (!item.has_keys) wait_for_scores();
            if (!item.has_values) continue;
            weigh(bests + head * state_row, totals + head * state_row);
            during_sums.far ? add_values<true>() : add_values<false>();
        }
        if (!item.has_values) return;
        for (int64_t i = 0; i < heads; i++) {
            const float total = totals[i / group * state_row + i % group];
            const vec sum = splat(total > 0 ? total : 1.0f);  // a row that pads sees no key
            for (int64_t d = 0; d < dim; d += LANES)
                store_part(out + i * dim + d, sums_at(sums + i * sums_row, d) / sum, dim - d);
        }
    }

   private:
    const PagedAttention<T>& a;
    Item& item;
    const int64_t group, dim, num_pairs, position;
    int64_t query_row, sums_row;  // distances of heads
    int64_t state_row;            // of KV heads, whole vectors
    Scalar* query;    // [heads][query_row]
    float* sums;      // [heads][sums_row], see sums_at
    float* scores;    // [group][TILE]
    Scalar* weights;  // [group][TILE / PACK]
    float *fades, *tops, *tile_totals;  // [state_row]: factors of the sums so far, the tile's largest score, its weights' sum
    float *bests, *totals;              // [num_kv][state_row]
    static constexpr int64_t NUM_LINES = 3;
    Lines lines[NUM_LINES];
    int64_t head;  // KV head of `tile` in the item
    const Lines* tile;
    // Lines that are fetched during products of `tile`: into the first-level cache and, from later tiles, into the second.
    struct Ahead {
        const void *const *near, *const *far;  // far: or null

        // The cache lines at number d of LANES lines from i on.
        inline __attribute__((always_inline)) void fetch_lanes(int64_t i, int64_t d) const {
            fetch_all<3>(near + i, d);
            if (far) fetch_all<2>(far + i, d);
        }

        // `num` numbers of line i, from d on.
        template <bool IS_FAR>
        inline __attribute__((always_inline)) void fetch_line(int64_t i, int64_t d, int64_t num) const {
            fetch((const C*)near[i] + d, num * sizeof(C));
            if (IS_FAR) fetch<2>((const C*)far[i] + d, num * sizeof(C));
        }

       private:
        template <int LOCALITY>
        static inline __attribute__((always_inline)) void fetch_all(const void* const* lines, int64_t d) {
            asm volatile("" : "+r"(lines));  // or gcc 12 keeps all pointers in vector registers
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) __builtin_prefetch((const C*)lines[i] + d, 0, LOCALITY);
        }
    } during_scores, during_sums;

    void wait_for_scores() const {
        for (int i = 0; item.num_ready->load(std::memory_order_acquire) < item.num_tiles; i++)
            if (i < 1000) relax();
            else std::this_thread::yield();
    }

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

    // scores[head][key], -infinity where a key is hidden
    void score() {
        constexpr int64_t NUMBERS = Columns<C, T>::NUMBERS;
        constexpr int PER_DWORD = Columns<C, T>::PER_DWORD;
        const int64_t num_parts = (tile->to + LANES - 1) / LANES;
        int64_t d = 0;
        for (; d + NUMBERS <= dim; d += NUMBERS) add_parts<true>(num_parts, d, LANES);
        if (d < dim) add_parts<false>(num_parts, d, int(dim - d + PER_DWORD - 1) / PER_DWORD);
        for (int64_t g = 0; g < group; g++)
            for (int64_t v = 0; v < num_parts; v++) {
                float* here = scores + g * TILE + v * LANES;
                const vec scale = PagedCache<C>::HAS_SCALES ? load(tile->key_scales + v * LANES) : splat(a.scale);
                const vec scaled = load(here) * scale;
                store(here, a.softcap != 0 ? softcap(scaled, a.softcap) : scaled);
            }
        if (tile->from == 0 && tile->to == TILE) return;
        for (int64_t g = 0; g < group; g++) {
            for (int64_t i = 0; i < tile->from; i++) scores[g * TILE + i] = -INFINITY;
            for (int64_t i = tile->to; i < TILE; i++) scores[g * TILE + i] = -INFINITY;
        }
    }

    // Adds the products of dimensions from d on, num_columns dwords, to the scores, two or four parts at a time: a single
    // chain of additions would wait for each sum.
    template <bool IS_WHOLE>
    inline __attribute__((always_inline)) void add_parts(int64_t num_parts, int64_t d, int num_columns) {
        int64_t v = 0;
        if (group == 1)
            for (; v + 4 <= num_parts; v += 4) add_some_parts<IS_WHOLE, 4>(v, d, num_columns);
        for (; v < num_parts; v += 2) add_some_parts<IS_WHOLE, 2>(v, d, num_columns);
    }

    template <bool IS_WHOLE, int NUM>
    inline __attribute__((always_inline)) void add_some_parts(int64_t v, int64_t d, int num_columns) {
        uvec columns[NUM][LANES];
        for (int n = 0; n < NUM; n++) take_columns<IS_WHOLE>(v + n, d, columns[n]);
        const Scalar* first = query + head * group * query_row + d / PACK;
        if constexpr (NUM == 4) add_products<IS_WHOLE, 1>(columns, v, 0, d, num_columns, first);
        else
            each_some(group, [&](auto num, int64_t g) __attribute__((always_inline)) {
                add_products<IS_WHOLE, num>(columns, v, g, d, num_columns, first);
            });
    }

    template <bool IS_WHOLE>
    inline __attribute__((always_inline)) void take_columns(int64_t v, int64_t d, uvec* columns) const {
        if (d * sizeof(C) % LINE == 0) during_scores.fetch_lanes(v * LANES, d);
#ifdef __AVX512BW__
        if constexpr (!IS_WHOLE && sizeof(C) == 1 && !Columns<C, T>::IS_WIDENED)
            return columns_of_rests<T>(tile->keys + v * LANES, d, dim - d, columns);
#endif
        columns_of_lines<C, T>(tile->keys + v * LANES, d, dim - d, columns);
    }

    // Adds the products of HEADS heads and the columns of NUM parts, from the v'th on.
    template <bool IS_WHOLE, int HEADS, int NUM>
    inline __attribute__((always_inline)) void add_products(
        const uvec (&columns)[NUM][LANES], int64_t v, int64_t g, int64_t d, int num_columns, const Scalar* first) {
        constexpr int OPERANDS = Columns<C, T>::OPERANDS;
        float* here = scores + g * TILE + v * LANES;
        const Scalar* q[HEADS];
        for (int m = 0; m < HEADS; m++) q[m] = first + (g + m) * query_row;
        vec acc[HEADS][NUM];
        for (int m = 0; m < HEADS; m++)
            for (int n = 0; n < NUM; n++) acc[m][n] = d == 0 ? vec{} : load(here + m * TILE + n * LANES);
        const auto add = [&](int k) __attribute__((always_inline)) {
            Vector operands[NUM][OPERANDS];
            for (int n = 0; n < NUM; n++) operands_of_column<C, T>(columns[n][k], operands[n]);
            for (int j = 0; j < OPERANDS; j++)
                for (int m = 0; m < HEADS; m++)
                    for (int n = 0; n < NUM; n++)
                        acc[m][n] = multiply_add(acc[m][n], operands[n][j], q[m][k * OPERANDS + j]);
        };
#ifdef __AVX512F__
        if constexpr (IS_WHOLE) {
#pragma GCC unroll 16
            for (int k = 0; k < LANES; k++) add(k);
            num_columns = 0;
        }
#endif
        for (int k = 0; k < num_columns; k++) add(k);
        for (int m = 0; m < HEADS; m++)
            for (int n = 0; n < NUM; n++) store(here + m * TILE + n * LANES, acc[m][n]);
    }

    // Merges the tile's softmax into the heads' running ones: their weights, and the factors of their sums so far.
    void weigh(float* best, float* total) {
        for (int64_t g = 0; g < group; g++) {
            vec top = splat(best[g]);
            for (int v = 0; v < PARTS; v++) top = larger(load(scores + g * TILE + v * LANES), top);
            tops[g] = largest(top);
        }
        for (int64_t g = 0; g < group; g++) {
            vec e[PARTS], chains = {};
            for (int v = 0; v < PARTS; v++) e[v] = load(scores + g * TILE + v * LANES) - splat(tops[g]);
            exp_nonpositive(e);
            for (int v = 0; v < PARTS; v++) chains += e[v];
            tile_totals[g] = sum(chains);
            for (int v = 0; v < PARTS; v++) {
                if (PagedCache<C>::HAS_SCALES) e[v] *= load(tile->value_scales + v * LANES);
                if constexpr (PACK == 2) store((bf16*)(weights + g * TILE / 2) + v * LANES, e[v]);
                else store(weights + g * TILE + v * LANES, e[v]);
            }
        }
        for (int64_t g = 0; g < group; g += LANES) {
            const vec fade = exp_nonpositive(load(best + g) - load(tops + g));
            store(best + g, load(tops + g));
            store(fades + g, fade);
            store(total + g, fma(load(total + g), fade, load(tile_totals + g)));
        }
    }

    template <bool IS_FAR>
    void add_values() {
        each_some(group, [&](auto num, int64_t g) __attribute__((always_inline)) {
            constexpr int MOST = num <= 2 ? 8 : 4;  // sums that hide the latency
            float* own = sums + (head * group + g) * sums_row;
            int64_t d = 0;
            for (; d + MOST * LANES <= dim; d += MOST * LANES) add_slice<num, MOST, IS_FAR>(own + d, g, d);
            for (; d + 4 * LANES <= dim; d += 4 * LANES) add_slice<num, 4, IS_FAR>(own + d, g, d);
            for (; d + STEP * LANES <= dim; d += STEP * LANES) add_slice<num, STEP, IS_FAR>(own + d, g, d);
            for (; d < dim; d += LANES) add_slice<num, 1, IS_FAR>(own + d, g, d);
        });
    }

    // Adds weight · value for NUM vectors of a head, from dimension d on, which stay in registers over all keys.
    template <int HEADS, int NUM, bool IS_FAR>
    void add_slice(float* own, int64_t g, int64_t d) {
        vec acc[HEADS][NUM];
        for (int h = 0; h < HEADS; h++)
            for (int n = 0; n < NUM; n++) acc[h][n] = load(own + h * sums_row + n * LANES) * splat(fades[g + h]);
        const Scalar* weight = weights + g * TILE / PACK;
        const Ahead ahead = during_sums;
        for (int64_t pair = tile->from / PACK; pair * PACK < tile->to; pair++) {
            const int64_t i = pair * PACK;
            if (g == 0)
                for (int n = 0; n < PACK; n++) ahead.template fetch_line<IS_FAR>(i + n, d, NUM * LANES);
            Vector lanes[NUM];
            constexpr int AT_ONCE = std::min(NUM, STEP);
            for (int n = 0; n < NUM; n += AT_ONCE) values_at<AT_ONCE>(i, d + n * LANES, NUM > 1 ? LANES : dim - d, lanes + n);
            for (int h = 0; h < HEADS; h++)
                for (int n = 0; n < NUM; n++)
                    acc[h][n] = multiply_add(acc[h][n], lanes[n], weight[h * (TILE / PACK) + pair]);
        }
        for (int h = 0; h < HEADS; h++)
            for (int n = 0; n < NUM; n++) store(own + h * sums_row + n * LANES, acc[h][n]);
    }

    // Values of PACK keys from i on, for NUM vectors of dimensions from d on, in the order of sums_at. `left`: dimensions
    // that remain, if fewer than LANES may.
    template <int NUM>
    inline __attribute__((always_inline)) void values_at(int64_t i, int64_t d, int64_t left, Vector* to) const {
        const C *first = (const C*)tile->values[i] + d, *second = PACK == 2 ? (const C*)tile->values[i + 1] + d : nullptr;
#ifdef __AVX512BW__
        if constexpr (NUM == 2) {
            const __m512i low = _mm512_loadu_si512(first), high = _mm512_loadu_si512(second);
            to[0] = (Vector)_mm512_unpacklo_epi16(low, high), to[1] = (Vector)_mm512_unpackhi_epi16(low, high);
            return;
        }
#endif
#if defined(__AVX512VBMI__) && defined(__AVX512BF16__)
        if constexpr (NUM == 4) {
            uvec low[2], high[2];
            bf16_of_bytes(load_vector<uvec>(first), &low[0], &low[1]), bf16_of_bytes(load_vector<uvec>(second), &high[0], &high[1]);
            for (int n = 0; n < 2; n++) {
                to[2 * n] = (Vector)_mm512_unpacklo_epi16((__m512i)low[n], (__m512i)high[n]);
                to[2 * n + 1] = (Vector)_mm512_unpackhi_epi16((__m512i)low[n], (__m512i)high[n]);
            }
            return;
        }
#endif
        if constexpr (PACK == 2) {
            const uvec low = (uvec)load_part(first, left), high = (uvec)load_part(second, left);
            to[0] = low >> 16 | high;  // values have bfloat16's precision, so their lower halves are zero
        } else {
            to[0] = load_part(first, left);
        }
    }

    // Sums of dimensions from d on. STEP vectors have fours of dimensions by turns, as interleaving leaves them.
    vec sums_at(const float* own, int64_t d) const {
#ifdef __AVX512BW__
        constexpr int64_t WHOLE = STEP * LANES;
        if (STEP > 1 && d < dim / WHOLE * WHOLE) {
            const float* whole = own + d / WHOLE * WHOLE;
            const auto four = [&](int i) {
                const int64_t number = d % WHOLE / 4 + i;
                return _mm_loadu_ps(whole + number % STEP * LANES + number / STEP * 4);
            };
            const __m256 low = _mm256_set_m128(four(1), four(0)), high = _mm256_set_m128(four(3), four(2));
            return (vec)_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
        }
#endif
        return load(own + d);
    }
};

template <typename C, typename T>
void attend_token(const PagedAttention<T>& a, Item& item) {
    const int64_t head = item.kv_head * (a.num_heads / a.num_kv_heads);
    Attended<C, T>(a, item).attend(
        a.q + item.token * a.q_token + head * a.q_head, a.out + (item.token * a.num_heads + head) * a.head_dim);
}

}  // namespace

template <typename T>
void attend_short_rows(const PagedAttention<T>& a, const Team& team) {
    // A work item is a row or, if there are few rows, a part of its heads: at least eight items a thread, if possible, or
    // two, if each has two heads, whose lines are neighbours in memory (10 % faster after 16,384 tokens).
    const int64_t heads = a.num_short * a.num_kv_heads, two = std::min<int64_t>(heads / (2 * team.num_threads), 2);
    const int64_t num_kv = std::clamp(std::max(heads / (8 * team.num_threads), two), int64_t(1), a.num_kv_heads);
    const int64_t parts = (a.num_kv_heads + num_kv - 1) / num_kv, count = a.num_short * parts;
    // Long items that are left after whole rounds of the threads are done by two threads each. The scores come first in
    // the queue, the sums last (two threads, one token after 4,096: of 3 KV heads 103 -> 88 us, of one 50 -> 31).
    int64_t most_tiles = 0;
    for (int64_t row = 0; row < a.num_short; row++)
        most_tiles = std::max<int64_t>(most_tiles, (a.query_start_loc[row + 1] - a.query_start_loc[row]) * (a.seq_lens[row] / TILE + 1));
    const int64_t left = count % team.num_threads, size = most_tiles * num_kv * (a.num_heads / a.num_kv_heads) * TILE;
    const bool is_shared = most_tiles >= LONG && count < 4 * team.num_threads && 2 * left <= team.num_threads;
    const int64_t num_shared = is_shared ? std::min<int64_t>(left, Meeting::MOST_SHARES) : 0;
    float* scores = num_shared ? (float*)team.share(num_shared * size * sizeof(float)) : nullptr;
    team.take(count + num_shared, [&](int64_t number) {
        const int64_t id = number % count;
        Item item{id / parts, 0, id % parts * num_kv, 0, number < count, number >= num_shared, nullptr, nullptr, 0};
        if (id < num_shared) item.scores = scores + id * size, item.num_ready = &team.count(id);
        item.num_kv = std::min(num_kv, a.num_kv_heads - item.kv_head);
        for (item.token = a.query_start_loc[item.row]; item.token < a.query_start_loc[item.row + 1]; item.token++)
            a.is_cache_int8 ? attend_token<int8_t>(a, item) : attend_token<T>(a, item);
    });
}

template void attend_short_rows(const PagedAttention<float>& a, const Team& team);
template void attend_short_rows(const PagedAttention<bf16>& a, const Team& team);
