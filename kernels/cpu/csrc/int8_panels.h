// Rows rounded to integers, and their products with the values of quantized weights: exact within a group of inputs,
// then added as floats, group after group. An integer is an int8, or 15 bits: 128 times one int8 plus another, two
// products, or for many rows an int16 if the processor has products of these.
#pragma once

#include "amx.h"
#include "integer_rounding.h"
#include "quantized.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

// True if many rows multiply in chunks (ChunkPanel).
#ifdef __AVX512VNNI__
constexpr bool HAS_CHUNKS = true;
#else
constexpr bool HAS_CHUNKS = false;
#endif

// Number that `dot` subtracts from each value, because its multiplication holds no larger ones.
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__) || \
    defined(__ARM_FEATURE_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int DOT_ZERO = 128;
#else
constexpr int DOT_ZERO = 0;
#endif

// Integers of a row in a chunk, int8 or int16, and of each STEP inputs what belongs to their group. A group that is
// larger than a chunk ends in a later one, which has its sum.
template <int LEVELS, int STEP>
struct RowChunk {
    static constexpr int INPUTS = 512 / LEVELS, STEPS = LEVELS == 1 && STEP == 16 ? 32 : 16;
    int8_t integers[512];
    float scales[STEPS], sums[STEPS];  // sums: of the integers, times the scale
    int32_t starts[STEPS];             // of products with int8: `dot` subtracts DOT_ZERO, not the weight's zero
};

// x [T][K] in groups: integers of LEVELS int8, of which a group's largest is ±127 or ±127 · 128, and the group's scale
// and sum. Rows of which many multiply the same weight are in chunks, [chunks][T], so that a pass of rows over a chunk
// of inputs reads neighbouring memory.
template <int LEVELS>
class Int8Rows {
   public:
    // What belongs to some inputs of a row: integers, upper and lower ones num_inputs apart.
    struct Part {
        int8_t* integers;
        float* scales;  // of its groups
        int32_t* sums;
    };

    // Most rows that are not in chunks. (4 bits, G products/s without and with: 24 rows 212 and 197, 48 rows 203 and
    // 203, with offsets 176 and 180, 185 and 185; int8 inputs 352 and 321, 341 and 329.)
    // With tiles fewer (17,920 x 1,536 in 4 bits, ms, by vectors and tiles: 8 rows 1.7 and 2.1, 24 rows 3.2 and 3.0, 64
    // rows 7.7 and 5.0, 512 rows 64 and 40).
    static int64_t few() {
#ifdef SPLITFUSE_AMX
        if (LEVELS == 1 && amx::is_allowed()) return 20;
#endif
        return LEVELS == 2 ? 40 : 64;
    }
    static constexpr int64_t CHUNK = 512 / LEVELS;  // inputs
    int64_t num_rows, num_inputs, num_groups, group;
    int32_t zero;             // the weight's
    int8_t *values, *chunks;  // [T][LEVELS][inputs], and the chunks
    float* scales;            // [T][groups]
    int32_t* sums;            // [T][groups]
    bool* in_chunks;          // [T]

    // `num_beside(row)`: number of rows that multiply the same weight, with this one.
    template <typename T, typename Count>
    Int8Rows(const T* x, int64_t num_rows, int64_t width, int64_t padded, int64_t group, int64_t zero, const Team& team,
             Count num_beside)
        : num_rows(num_rows), num_inputs(padded), num_groups((padded + group - 1) / group), group(group),
          zero(int32_t(zero)) {
        const int64_t block = group > CHUNK ? group : CHUNK, num_blocks = (padded + block - 1) / block;
        const int64_t bytes = HAS_CHUNKS ? (padded + CHUNK - 1) / CHUNK * num_rows * chunk_bytes() : 0;
        chunks = (int8_t*)team.share(bytes + num_rows * (num_groups * 8 + LEVELS * padded + 1));
        scales = (float*)(chunks + bytes);
        sums = (int32_t*)(scales + num_rows * num_groups);
        values = (int8_t*)(sums + num_rows * num_groups);
        in_chunks = (bool*)(values + num_rows * LEVELS * padded);
        team.each(num_rows * num_blocks, [&](int64_t item) {
            const int64_t row = item / num_blocks, begin = item % num_blocks * block;
            const int64_t end = begin + block < padded ? begin + block : padded;
            const bool is_chunk = HAS_CHUNKS && num_beside(row) > few();
            if (begin == 0) in_chunks[row] = is_chunk;
#ifdef __AVX512VNNI__
            if (is_chunk)
                return with_step([&](auto step) {
                    round_chunks<decltype(step)::value>(x + row * width, row, begin, end, width);
                });
#endif
            Part to = part(row, begin);
            for (int64_t k = begin; k < end; k += group, to.scales++, to.sums++, to.integers += group)
                round(x + row * width, k, k + group < end ? k + group : end, width, to);
        });
        team.barrier();
    }

    const int8_t* row(int64_t number, int level) const { return values + (number * LEVELS + level) * num_inputs; }

    // Calls f(the STEP of chunks, as a type).
    template <typename Function>
    void with_step(Function f) const {
        if (group == 16) f(std::integral_constant<int, 16>());
        else f(std::integral_constant<int, 32>());
    }

    // Rows of the chunk that begins at an input.
    template <int STEP>
    RowChunk<LEVELS, STEP>* chunk(int64_t begin) const {
        return (RowChunk<LEVELS, STEP>*)chunks + begin / CHUNK * num_rows;
    }

   private:
    static constexpr float LARGEST = LEVELS == 1 ? 127 : 127 * 128;

    int64_t chunk_bytes() const {
        int64_t bytes = 0;
        with_step([&](auto step) { bytes = sizeof(RowChunk<LEVELS, decltype(step)::value>); });
        return bytes;
    }

    Part part(int64_t row, int64_t begin) const {
        const int64_t index = row * num_groups + begin / group;
        return {values + row * LEVELS * num_inputs + begin, scales + index, sums + index};
    }

    template <typename T>
    void round(const T* x, int64_t begin, int64_t end, int64_t width, Part to) const {
        const auto numbers = [&](int64_t k) { return k < width ? load_part(x + k, width - k) : vec{}; };
        const IntegerRounding rounding(numbers, begin, end, LARGEST);
        *to.scales = rounding.scale;
        ivec sum = {};
        for (int64_t k = begin; k < end; k += LANES) {
            const ivec rounded = rounding(numbers(k));
            sum += rounded;
            if (LEVELS == 1) {
                store_bytes(to.integers + k - begin, rounded);
            } else {
                const ivec upper = (rounded + 64) >> 7;
                store_bytes(to.integers + k - begin, upper);
                store_bytes(to.integers + num_inputs + k - begin, rounded - (upper << 7));
            }
        }
        *to.sums = across(sum, [](auto a, auto b) { return a + b; });
    }

#ifdef __AVX512VNNI__
    // Joins lanes, which belong to steps, with the others of their group.
    template <int STEP, typename Join>
    ivec across_steps(ivec x, Join join) const {
        const int64_t num_steps = group < num_inputs ? group / STEP : LANES;
        const ivec lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        for (int i = 1; i < num_steps; i *= 2)
            x = join(x, (ivec)_mm512_permutexvar_epi32((__m512i)(lanes ^ i), (__m512i)x));
        return x;
    }

    // Rounds inputs [begin, end) of a row: a chunk, or all chunks of a group. Lanes are joined for 16 steps at once.
    template <int STEP, typename T>
    void round_chunks(const T* x, int64_t row, int64_t begin, int64_t end, int64_t width) const {
        constexpr int STEPS = RowChunk<LEVELS, STEP>::STEPS;
        const auto larger = [](ivec a, ivec b) __attribute__((always_inline)) { return a > b ? a : b; };
        const auto add = [](ivec a, ivec b) __attribute__((always_inline)) { return a + b; };
        ivec largest[STEPS] = {}, sums[STEPS] = {};
        T rest[CHUNK];  // numbers of the last chunk, then zeros
        // Calls f(number of the step, k - first, numbers) for the chunk.
        const auto each = [&](int64_t first, auto f) __attribute__((always_inline)) {
            const T* from = x + first;
            if (first + CHUNK > width) {
                std::memset(rest, 0, sizeof rest);
                from = (const T*)std::memcpy(rest, from, (width - first) * sizeof(T));
            }
            for (int64_t k = 0; k < CHUNK && k < end - first; k += STEP)
#pragma GCC unroll 2
                for (int i = 0; i < STEP; i += LANES) f(k / STEP, k + i, load(from + k + i));
        };
        for (int64_t first = begin; first < end; first += CHUNK)
            each(first, [&](int64_t step, int64_t, vec numbers) __attribute__((always_inline)) {
                largest[step] = larger(largest[step], (ivec)numbers & INT32_MAX);
            });
        vec scales[STEPS / LANES];
        float up[STEPS];
        for (int i = 0; i < STEPS / LANES; i++) {
            vec ups;
            IntegerRounding::levels(across_steps<STEP>(across_each(largest + i * LANES, larger), larger), LARGEST,
                                    scales[i], ups);
            store(up + i * LANES, ups);
        }
        for (int64_t first = begin; first < end; first += CHUNK) {
            RowChunk<LEVELS, STEP>& to = chunk<STEP>(first)[row];
            each(first, [&](int64_t step, int64_t k, vec numbers) __attribute__((always_inline)) {
                const ivec rounded = IntegerRounding(0, up[step])(numbers);
                sums[step] += rounded;
                if (LEVELS == 1) store_bytes(to.integers + k, rounded);
                else store_shorts((int16_t*)to.integers + k, rounded);
            });
            const bool is_open = first + CHUNK < end;
            for (int i = 0; i < STEPS / LANES; i++) {
                const ivec sum = across_steps<STEP>(across_each(sums + i * LANES, add), add);
                store(to.scales + i * LANES, scales[i]);
                store(to.sums + i * LANES, scales[i] * __builtin_convertvector(sum, vec));
                if (LEVELS == 2) continue;
                const ivec starts = (is_open ? 0 : DOT_ZERO - zero) * sum;
                std::memcpy(to.starts + i * LANES, &starts, sizeof starts);
            }
        }
    }
#endif
};

// True if `dot` is one instruction.
#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__)) || defined(__ARM_FEATURE_DOTPROD)
constexpr bool HAS_DOT = true;
#else
constexpr bool HAS_DOT = false;
#endif

// sum + Σ (value - DOT_ZERO) · x over the four values of each lane.
inline ints_t dot(ints_t sum, quads_t values, int32_t x) {
#if defined(__AVX512VNNI__)
    return (ints_t)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)values, _mm512_set1_epi32(x));
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
    return (ints_t)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)values, _mm256_set1_epi32(x));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    // Pairs are added in 16 bits: 2 · 128 · 127 fits, 2 · 255 · 127 would not.
    const __m256i w = (__m256i)(values ^ 0x80808080);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(_mm256_set1_epi32(x), w));
    return sum + (ints_t)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#elif defined(__ARM_FEATURE_DOTPROD)
    int32x4_t halves[2];
    uint8x16_t of_halves[2];
    std::memcpy(halves, &sum, sizeof sum);
    std::memcpy(of_halves, &values, sizeof values);
    const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(x));
    for (int i = 0; i < 2; i++)
#ifdef __ARM_FEATURE_MATMUL_INT8
        halves[i] = vusdotq_s32(halves[i], of_halves[i], four);
#else
        halves[i] = vdotq_s32(halves[i], vreinterpretq_s8_u8(veorq_u8(of_halves[i], vdupq_n_u8(128))), four);
#endif
    std::memcpy(&sum, halves, sizeof sum);
    return sum;
#else
    for (int j = 0; j < 4; j++) sum += (ints_t)((values >> 8 * j) & 255) * int32_t(int8_t(x >> 8 * j));
    return sum;
#endif
}

#ifdef __AVX512VNNI__
// sum + Σ value · x over the two int16 of each lane.
inline ints_t dot_pairs(ints_t sum, quads_t values, int32_t x) {
    return (ints_t)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)values, _mm512_set1_epi32(x));
}
#endif

inline void add_to(float* total, sums_t a, sums_t b) {
    const sums_t sum = fma(a, b, load_vector<sums_t>(total));
    std::memcpy(total, &sum, sizeof sum);
}

// Products of some rows with unpacked panels, one group of x after the other.
template <typename T, int LEVELS>
struct Int8Sums {
    static constexpr int MANY = V == 2 ? 6 : 2;  // most rows whose sums, integers and floats, fit the registers
    const Int8Rows<LEVELS>& x;
    const T* bias;
    T* out;
    int64_t num_outputs, out_row, zero;
    bool has_offsets;

    // Corrects the sum: `dot` subtracts DOT_ZERO from each value, not the weight's zero.
    ints_t at_zero(int64_t row, int64_t group) const {
        return ints_t{} + int32_t(DOT_ZERO - zero) * x.sums[row * x.num_groups + group];
    }

    // Adds a group's integers to the sums.
    void join(sums_t& total, ints_t sum, int64_t row, int64_t group, sums_t scale, sums_t offset) const {
        const int64_t of = row * x.num_groups + group;
        total = fma(__builtin_convertvector(sum, sums_t) * x.scales[of], scale, total);
        if (has_offsets) total = fma(offset, sums_t{} + x.scales[of] * float(x.sums[of]), total);
    }

    int64_t end_of(int64_t group) const { return (group + 1) * x.group < x.num_inputs ? (group + 1) * x.group : x.num_inputs; }

    void finish(int64_t row, int64_t number, const sums_t totals[V]) const {
        write(out + row * out_row, bias, num_outputs, number * PANEL, (const float*)totals);
    }
};

// An unpacked panel, for many rows.
template <typename T, int LEVELS>
struct Int8Panel : Int8Sums<T, LEVELS> {
    const float* headers;   // [groups of x][scales, offsets][PANEL]
    const uint32_t* quads;  // [K/4][PANEL]
    int64_t num_points() const { return this->x.num_inputs / BLOCK * LEVELS; }

    template <int M>
    void multiply(int64_t row, int64_t number, Prefetch ahead) const {
        const auto& x = this->x;
        sums_t totals[M][V] = {};
        for (int64_t i = 0; i < x.num_groups; i++) {
            ints_t sums[M][V] = {};
            for (int level = 0; level < LEVELS; level++) {
                const bool is_last = level == LEVELS - 1;
                for (int m = 0; m < M; m++)
                    for (int v = 0; v < V; v++)
                        sums[m][v] = (sums[m][v] << 7) + (is_last ? this->at_zero(row + m, i) : ints_t{});
                const int8_t* rows = x.row(row, level);
                for (int64_t quad = i * x.group / 4; quad < this->end_of(i) / 4; quad++) {
                    if (quad % (BLOCK / 4) == 0) ahead.fetch();
                    quads_t lanes[V];
                    for (int v = 0; v < V; v++) lanes[v] = load_vector<quads_t>(quads + quad * PANEL + v * WIDTH);
                    for (int m = 0; m < M; m++) {
                        int32_t four;
                        std::memcpy(&four, rows + m * LEVELS * x.num_inputs + quad * 4, 4);
                        for (int v = 0; v < V; v++) sums[m][v] = dot(sums[m][v], lanes[v], four);
                    }
                }
            }
            for (int v = 0; v < V; v++) {
                const float* header = headers + i * 2 * PANEL + v * WIDTH;
                const sums_t scale = load_vector<sums_t>(header), offset = load_vector<sums_t>(header + PANEL);
                for (int m = 0; m < M; m++) this->join(totals[m][v], sums[m][v], row + m, i, scale, offset);
            }
        }
        for (int m = 0; m < M; m++) this->finish(row + m, number, totals[m]);
    }
};

#ifdef __AVX512VNNI__
// A chunk of a panel, unpacked for many rows: so small that it stays in the first-level cache.
template <int LEVELS, int STEP>
struct ChunkPanel {
    typedef RowChunk<LEVELS, STEP> Row;
    static constexpr int MOST = 6;  // rows whose sums, integers and floats, fit the registers
    static constexpr int QUADS = STEP == 16 && LEVELS == 1 ? 4 : 8;  // or pairs, that a loop's turn reads
    int64_t num_inputs, group;
    bool has_offsets, is_open;  // is_open: the group goes on in the next chunk, and totals keep its integers
    const float* headers;       // [groups][scales, offsets][PANEL]
    const uint32_t* values;     // quads or pairs, [inputs · LEVELS / 4][PANEL]

    // Adds products with rows: totals [rows][PANEL]. Passes are of MOST rows and one row less, if that is possible.
    // Calls f(first row, number of rows) after each.
    template <typename Function>
    void multiply(const Row* rows, int64_t num_rows, float* totals, Function f) const {
#ifdef SPLITFUSE_AMX
        if (LEVELS == 1 && group <= Row::INPUTS && amx::is_allowed()) return multiply_tiles(rows, num_rows, totals, f);
#endif
        const int64_t rest = (MOST - num_rows % MOST) % MOST, num_smaller = rest * (MOST - 1) > num_rows ? 0 : rest;
        for (int64_t row = 0, pass = 0, num; row < num_rows; row += num, pass++) {
            num = pass < num_smaller ? MOST - 1 : num_rows - row >= MOST ? MOST : 1;
            if (num == MOST) multiply<MOST>(rows + row, totals + row * PANEL);
            else if (num == MOST - 1) multiply<MOST - 1>(rows + row, totals + row * PANEL);
            else multiply<1>(rows + row, totals + row * PANEL);
            f(row, num);
        }
    }

   private:
#ifdef SPLITFUSE_AMX
    // Like multiply, with tiles.
    template <typename Function>
    void multiply_tiles(const Row* rows, int64_t num_rows, float* totals, Function f) const {
        const int bytes = group % 64 == 0 && num_inputs % 64 == 0 ? 64 : STEP;
        int configured = 0;
        for (int64_t row = 0, num; row < num_rows; row += num) {
            num = num_rows - row < amx::MOST ? num_rows - row : amx::MOST;
            if (num != configured) amx::configure(configured = int(num), bytes);
            multiply_tile(rows + row, int(num), bytes, totals + row * PANEL);
            f(row, num);
        }
        _tile_release();
    }

    // Products of at most amx::MOST rows: GROUPS groups by tiles, then their sums of four rows at a time.
    __attribute__((noinline)) void multiply_tile(const Row* rows, int num_rows, int bytes, float* to) const {
        constexpr int GROUPS = 4;
        alignas(64) int32_t sums[GROUPS][amx::MOST][PANEL];
        const float* header = headers;
        for (int64_t at = 0; at < num_inputs; header += GROUPS * 2 * PANEL) {
            const int64_t first = at;
            int num = 0;
            for (; num < GROUPS && at < num_inputs; num++, at += group)
                amx::multiply_bytes(rows->integers + at, sizeof(Row), values + at / 4 * PANEL,
                                    num_inputs - at < group ? num_inputs - at : group, bytes, sums[num][0]);
            for (int row = 0; row < num_rows; row += 4)
                join(rows + row, num_rows - row < 4 ? num_rows - row : 4, first, num, sums[0][row], header, to + row * PANEL);
        }
    }

    // Adds sums [num][amx::MOST][PANEL] of M rows' groups from input `first` on.
    template <int M = 4>
    __attribute__((always_inline)) void join(const Row* rows, int num_rows, int64_t first, int num, const int32_t* sums,
                                             const float* header, float* to) const {
        if constexpr (M > 1)
            if (num_rows < M) return join<M - 1>(rows, num_rows, first, num, sums, header, to);
        // Not copied as a whole: gcc 12 would do so by halves of vectors, for whose stores the loads of whole ones wait.
        sums_t totals[M][V];
#pragma GCC unroll 4
        for (int m = 0; m < M; m++)
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) totals[m][v] = load_vector<sums_t>(to + m * PANEL + v * WIDTH);
        for (int i = 0; i < num; i++, header += 2 * PANEL, sums += amx::MOST * PANEL) {
            const int64_t step = (first + i * group) / STEP;
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) {
                const sums_t scale = load_vector<sums_t>(header + v * WIDTH);
#pragma GCC unroll 4
                for (int m = 0; m < M; m++) {
                    const ints_t sum = load_vector<ints_t>(sums + m * PANEL + v * WIDTH) + rows[m].starts[step];
                    totals[m][v] = fma(__builtin_convertvector(sum, sums_t) * rows[m].scales[step], scale, totals[m][v]);
                }
                if (!has_offsets) continue;
                const sums_t offset = load_vector<sums_t>(header + PANEL + v * WIDTH);
#pragma GCC unroll 4
                for (int m = 0; m < M; m++) totals[m][v] = fma(offset, rows[m].sums[step] - sums_t{}, totals[m][v]);
            }
        }
#pragma GCC unroll 4
        for (int m = 0; m < M; m++)
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) std::memcpy(to + m * PANEL + v * WIDTH, &totals[m][v], sizeof totals[m][v]);
    }
#endif

    // Rows are a constant number of bytes apart, because gcc 12 would spill registers (groups of 32: 71 -> 64 cycles).
    // It unrolls what it is told to, and leaves branches in what it unrolls.
    template <int M>
    __attribute__((noinline)) void multiply(const Row* rows, float* to) const {
        const int64_t num_bytes = num_inputs * LEVELS, group_bytes = group * LEVELS;
        const float* header = headers;
        const uint32_t* from = values;
        sums_t totals[M][V];
        const auto each = [&](auto f) __attribute__((always_inline)) {
#pragma GCC unroll 8
            for (int m = 0; m < M; m++)
#pragma GCC unroll 4
                for (int v = 0; v < V; v++) f(m, v, totals[m][v]);
        };
        each([&](int m, int v, sums_t& total) __attribute__((always_inline)) {
            total = load_vector<sums_t>(to + m * PANEL + v * WIDTH);
        });
        for (int64_t at = 0; at < num_bytes; header += 2 * PANEL) {
            const int64_t step = at / (STEP * LEVELS);
            ints_t sums[M][V];
            each([&](int m, int v, sums_t&) __attribute__((always_inline)) {
                sums[m][v] = LEVELS == 2 ? ints_t{} : ints_t{} + rows[m].starts[step];
            });
            const int64_t behind = at + group_bytes < num_bytes ? at + group_bytes : num_bytes;
            do {
#pragma GCC unroll 8
                for (int i = 0; i < QUADS; i++) {
                    quads_t lanes[V];
#pragma GCC unroll 4
                    for (int v = 0; v < V; v++) lanes[v] = load_vector<quads_t>(from + i * PANEL + v * WIDTH);
                    each([&](int m, int v, sums_t&) __attribute__((always_inline)) {
                        int32_t x;
                        std::memcpy(&x, rows[m].integers + at + i * 4, 4);
                        ints_t& sum = sums[m][v];
                        sum = LEVELS == 2 ? dot_pairs(sum, lanes[v], x) : dot(sum, lanes[v], x);
                    });
                }
                at += QUADS * 4, from += QUADS * PANEL;
            } while (at < behind);
            if (group > Row::INPUTS) {
                each([&](int m, int v, sums_t& total) __attribute__((always_inline)) {
                    sums[m][v] += (ints_t)total;
                    total = is_open ? (sums_t)sums[m][v] : sums_t{};
                });
                if (is_open) break;
            }
            each([&](int m, int v, sums_t& total) __attribute__((always_inline)) {
                const sums_t product = __builtin_convertvector(sums[m][v], sums_t) * rows[m].scales[step];
                total = fma(product, load_vector<sums_t>(header + v * WIDTH), total);
            });
            if (!has_offsets) continue;
            each([&](int m, int v, sums_t& total) __attribute__((always_inline)) {
                const sums_t offset = load_vector<sums_t>(header + PANEL + v * WIDTH);
                total = fma(offset, rows[m].sums[step] - sums_t{}, total);
            });
        }
        each([&](int m, int v, sums_t total) __attribute__((always_inline)) {
            std::memcpy(to + m * PANEL + v * WIDTH, &total, sizeof total);
        });
    }
};
#endif

// A stored panel, whose values are unpacked in registers by every pass over it.
template <int BITS, int LEVELS>
struct StoredInt8Panel {
    static constexpr int MOST = V == 2 ? 6 : LEVELS == 2 ? 1 : 2;  // most rows whose integer sums fit the registers
    // Most rows that pass over a stored panel, without chunks. (4 bits, G products/s of both forms: 8 rows 187 and 146,
    // 48 rows of 2,048 inputs 194 and 183, 1,024 rows of 8,192 inputs 168 and 175. With 16 registers both forms spill.)
    static constexpr int MANY = V == 2 ? 64 : MOST;
    // The usual group, whose loop is unrolled.
    static constexpr int GROUP = BITS == 6 || BITS == 3 || BITS == 2 ? 16 : 32;
    static constexpr int64_t GROUP_BYTES = GROUP * PANEL * low_bits(BITS) / 8;
    // All passes multiply a chunk of the panel before the next one. Its 8 KB of values stay in the first-level cache.
    // (8 rows of 8 bits, 1,312 MB: 66 -> 28 ms. Before, every pass read the whole panel from the second-level cache and
    // fetched the next panel into it, and both wait for the first-level cache's few buffers for misses.)
    static constexpr int64_t CHUNK = BITS == 8 ? 256 : 512;
    // Distance of prefetches in bytes of values. (8 bits, 1 row: 4 KB 17.4 ms, 8 KB 17.9; 4 rows 20.3 and 18.2; 8 rows
    // 8 KB 32, 12 or 16 KB 28.)
    static int64_t distance(int64_t num_rows) { return (num_rows == 1 ? 4 : num_rows <= MOST ? 6 : 12) << 10; }
    const Int8Rows<LEVELS>& x;
    const QuantizedPanels& w;
    int64_t number;
    const float* headers;  // [groups of x][scales, offsets][PANEL], of form HEADERS alone

    // Forms of scales and offsets. Those of the usual group are converted as the product reads them: converted for a
    // whole panel before it, they took a third of the time of one row (4 bits, one row: 84 -> 145 G products/s).
    enum Form { HEADERS, HALVES, BYTES };
    static Form form(const QuantizedPanels& w, int64_t group) {
        if (group != GROUP || w.group != GROUP) return HEADERS;
        if (w.scale_bytes == 2) return GROUP == 16 ? HEADERS : HALVES;
        return w.super_scales && BITS != 8 ? BYTES : HEADERS;
    }

    // Prefetches of one of several passes over a chunk: its share of all lines.
    struct Ahead {
        int64_t distance, passes, pass;
        int64_t next() {
            const bool is_mine = pass == 0;
            pass = (is_mine ? passes : pass) - 1;
            return is_mine ? distance : 0;
        }
    };

    // Adds products of inputs [begin, end), whole groups, to the sums of rows from `row` on, at most M: totals
    // [rows][PANEL].
    template <int M>
    void multiply_some(int num_rows, int64_t row, int64_t begin, int64_t end, Ahead ahead, float* totals) const {
        if constexpr (M > 1)
            if (num_rows < M) return multiply_some<M - 1>(num_rows, row, begin, end, ahead, totals);
        const Form form = this->form(w, x.group);
        if constexpr (GROUP != 16)
            if (form == HALVES) return multiply<M, HALVES>(row, begin, end, ahead, totals);
        if constexpr (BITS != 8)
            if (form == BYTES) return multiply<M, BYTES>(row, begin, end, ahead, totals);
        multiply<M, HEADERS>(row, begin, end, ahead, totals);
    }

   private:
    // Totals stay in memory, because gcc 12 would spill the integers' registers. It unrolls what it is told to.
    template <int M, Form FORM>
    __attribute__((noinline)) void multiply(int64_t row, int64_t begin, int64_t end, Ahead ahead, float* totals) const {
        QuantizedPanels w = this->w;
        w.values += begin * PANEL * low_bits(BITS) / 8;
        if (high_bits(BITS)) w.high += begin * PANEL * high_bits(BITS) / 8;
        const int64_t number = this->number, width = x.num_inputs, num_groups = x.num_groups, size = x.group;
        const int64_t first = begin / size, num_inputs = end - begin;
        const int8_t* rows = x.row(row, 0) + begin;
        const float* scales = x.scales + row * num_groups + first;
        const int32_t* of_rows = x.sums + row * num_groups + first;
        const int32_t zero = int32_t(DOT_ZERO - w.zero);  // `dot` subtracts DOT_ZERO, not the weight's zero
        const int64_t super_group = w.super_group, uppers = number * w.num_super_groups * PANEL;
#ifdef SPLITFUSE_AMX
        constexpr int LOCALITY = 3;  // Intel's processors with tiles (17,920 x 1,536 in Q4_K, one row: 1.35 -> 0.57 ms)
#else
        constexpr int LOCALITY = M <= 2 ? 0 : 3;  // one or two rows pass by the second-level cache
#endif
        constexpr int64_t LINE = FORM == HALVES ? PANEL * 2 : PANEL;  // bytes of a group's scales
        const int64_t index = FORM == HEADERS ? first * PANEL * 8 : (number * num_groups + first) * LINE;
        const char* scale_of = (FORM == HEADERS ? (const char*)headers : (const char*)w.scales) + index;
        const char* offset_of = nullptr;
        if (w.offsets) offset_of = FORM == HEADERS ? scale_of + PANEL * 4 : (const char*)w.offsets + index;
        const auto level = [&](const char* from, const uint16_t* upper, int v) __attribute__((always_inline)) {
            if (FORM == HEADERS) return load_vector<sums_t>((const float*)from + v * WIDTH);
            if (FORM == HALVES) return floats_of_halves((const uint16_t*)from + v * WIDTH) * w.unit;
            return floats_of_bytes((const int8_t*)from + v * WIDTH) * (floats_of_halves(upper + v * WIDTH) * w.unit);
        };
        for (int64_t k = 0; k < num_inputs; scales++, of_rows++) {
            const int64_t above = FORM == BYTES ? uppers + (begin + k) / super_group * PANEL : 0;
            ints_t sums[LEVELS][M][V];
#pragma GCC unroll 8
            for (int m = 0; m < M; m++)
#pragma GCC unroll 4
                for (int v = 0; v < V; v++) {
                    sums[0][m][v] = ints_t{};
                    sums[LEVELS - 1][m][v] = ints_t{} + zero * of_rows[m * num_groups];
                }
            const int64_t distance = ahead.next();
            const auto add_half = [&](int64_t k) __attribute__((always_inline)) {
                const auto add_quad = [&](int quad, const quads_t(&lanes)[V]) __attribute__((always_inline)) {
#pragma GCC unroll 8
                    for (int m = 0; m < M; m++)
#pragma GCC unroll 2
                        for (int level = 0; level < LEVELS; level++) {
                            int32_t four;
                            std::memcpy(&four, rows + (m * LEVELS + level) * width + k + quad * 4, 4);
#pragma GCC unroll 4
                            for (int v = 0; v < V; v++) sums[level][m][v] = dot(sums[level][m][v], lanes[v], four);
                        }
                };
                w.template each_quad<BITS, LOCALITY, true>(number, k, distance, add_quad);
            };
            if (FORM != HEADERS) {
                add_half(k);
                if (GROUP > HALF) add_half(k + HALF);
                k += GROUP;
                fetch<LOCALITY>(scale_of + distance * LINE / GROUP_BYTES);
                if (offset_of) fetch<LOCALITY>(offset_of + distance * LINE / GROUP_BYTES);
            } else {
                const int64_t next = k + size < num_inputs ? k + size : num_inputs;
                for (; k < next; k += HALF) add_half(k);
            }
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) {
                const sums_t scale = level(scale_of, w.super_scales + above, v);
#pragma GCC unroll 8
                for (int m = 0; m < M; m++) {
                    const ints_t sum = LEVELS == 2 ? (sums[0][m][v] << 7) + sums[LEVELS - 1][m][v] : sums[0][m][v];
                    const sums_t product = __builtin_convertvector(sum, sums_t) * scales[m * num_groups];
                    add_to(totals + m * PANEL + v * WIDTH, product, scale);
                }
            }
            if (offset_of) {
#pragma GCC unroll 4
                for (int v = 0; v < V; v++) {
                    const sums_t offset = level(offset_of, w.super_offsets + above, v);
#pragma GCC unroll 8
                    for (int m = 0; m < M; m++) {
                        const sums_t sum = sums_t{} + scales[m * num_groups] * float(of_rows[m * num_groups]);
                        add_to(totals + m * PANEL + v * WIDTH, offset, sum);
                    }
                }
                offset_of += FORM == HEADERS ? PANEL * 8 : LINE;
            }
            scale_of += FORM == HEADERS ? PANEL * 8 : LINE;
        }
    }

    // Inlined early: see QuantizedPanels.
    template <int LOCALITY>
    __attribute__((always_inline)) static inline void fetch(const char* from) {
        __builtin_prefetch(from, 0, LOCALITY);
    }
};
