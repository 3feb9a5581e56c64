// Layers with a matrix as state, token by token: the gated delta rule and Mamba-2, whose state [rows][columns] of a
// head has keys (or B and C) along the rows and values (or x) along the columns.
//
// Heads that share keys are a group. An item of work is some blocks of columns of a group's heads in one row of the
// batch. It takes a tile of tokens at a time: convolves the group's keys once, then passes the tile through one block
// of columns after the other, which stays in the first-level cache meanwhile.
//
// Columns do not depend on each other. A column's sums over the rows have two chains, of even and of odd rows, whatever
// the cut, the block or the processor: no product but those of `fma` is fused with a sum (build.py compiles this file
// without contractions).

#include <algorithm>

#include "recurrence.h"

namespace {

constexpr int VECTORS = 2;    // registers of a block's columns: 16 KiB of state with 128 rows and AVX-512
#ifdef __AVX512F__
constexpr int STRIP = 4;      // registers of a single token's columns, whose sums fill all
#else
constexpr int STRIP = 2;
#endif
constexpr int64_t WIDTH = sizeof(lanes_t) / sizeof(float);
constexpr int64_t MOST_COLUMNS = 128;  // of a single token's block
constexpr int64_t BLOCK = VECTORS * WIDTH;
constexpr int64_t MOST_BLOCKS = 256 / BLOCK * 2;  // of an item: 256 KiB of state with 128 rows

inline lanes_t load_lanes(const float* from) { return load_vector<lanes_t>(from); }
inline void store_lanes(float* to, lanes_t x) { store_register(to, x); }
// All lanes are *x: one load, where `splat` adds to zero.
inline lanes_t broadcast(const float* x) {
#ifdef __AVX512F__
    return lanes_t{*x, *x, *x, *x, *x, *x, *x, *x, *x, *x, *x, *x, *x, *x, *x, *x};
#else
    return lanes_t{*x, *x, *x, *x, *x, *x, *x, *x};
#endif
}

// Columns of a state's rows, `stride` apart; without data all are zero.
struct Columns {
    float* data;
    int64_t stride;
    bool is_slot;  // read again only when the step's weights have passed through the caches
};

// Memory that is read next, asked for line by line while there is something else to do.
struct Ahead {
    const float* data;
    int64_t stride, columns, num_rows, column = 0;

    void fetch() {
        if (!num_rows) return;
        __builtin_prefetch(data + column, 0, 2);
        if ((column += LANES) < columns) return;
        column = 0, data += stride, num_rows--;
    }
};

template <int V>
inline void load_row(const float* from, int64_t columns, lanes_t* to) {
    if (columns == V * WIDTH) {
        for (int v = 0; v < V; v++) to[v] = load_lanes(from + v * WIDTH);
        return;
    }
    float rest[V * WIDTH] = {};
    std::memcpy(rest, from, columns * sizeof(float));
    for (int v = 0; v < V; v++) to[v] = load_lanes(rest + v * WIDTH);
}
template <int V>
inline void store_row(float* to, int64_t columns, const lanes_t* from) {
    if (columns == V * WIDTH)
        for (int v = 0; v < V; v++) store_lanes(to + v * WIDTH, from[v]);
    else
        std::memcpy(to, from, columns * sizeof(float));
}

// Calls f(row, chain).
template <typename Function>
inline void each_row(int64_t num_rows, Function f) {
    int64_t row = 0;
    for (; row + 2 <= num_rows; row += 2) f(row, 0), f(row + 1, 1);
    if (row < num_rows) f(row, 0);
}

// True if rows of so many columns can be stored past the caches, and are not read again soon. Otherwise a line is first
// read from memory, half as much traffic again.
inline bool is_streamed(const Columns& to, int64_t columns) {
    return to.is_slot && columns % WIDTH == 0 && to.stride % WIDTH == 0 && (uintptr_t)to.data % sizeof(lanes_t) == 0;
}

// Stores rows that row(i, out) computes.
template <int V, typename Row>
inline void store_rows(const Columns& to, int64_t num_rows, int64_t columns, Row row) {
    lanes_t out[V];
    if (columns == V * WIDTH && is_streamed(to, columns))
        for (int64_t i = 0; i < num_rows; i++) {
            row(i, out);
            for (int v = 0; v < V; v++) stream(to.data + i * to.stride + v * WIDTH, out[v]);
        }
    else
        for (int64_t i = 0; i < num_rows; i++) row(i, out), store_row<V>(to.data + i * to.stride, columns, out);
}

// Tile of tokens in a block of columns of one head.
struct Block {
    Columns from, to;
    int64_t num_rows, columns, num_tokens;
    const float *keys, *queries;  // [TILE][key_stride]
    int64_t key_stride;
    const float* values;         // [TILE][BLOCK]
    const float *decay, *scale;  // [TILE]
    float* state;                // [num_rows][BLOCK]
    const float* products;       // [TILE]: key · query, or null
    float skip;                  // factor of the values in the output
    Ahead ahead;

    void copy() const {
        for (int64_t row = 0; row < num_rows; row++)
            for (int64_t c = 0; c < columns; c++) to.data[row * to.stride + c] = from.data ? from.data[row * from.stride + c] : 0.0f;
    }
};

// Gated delta rule. The sums kᵀS and qᵀS of a token are taken while the state of the token before is written; its
// output qᵀS' is g · qᵀS + (q · k) · delta.
template <int V, typename Write>
void delta_tile(const Block& b, Write write) {
    lanes_t by_key[2][V] = {}, by_query[2][V] = {};
    each_row(b.num_rows, [&](int64_t row, int chain) __attribute__((always_inline)) {
        lanes_t state[V] = {};
        if (b.from.data) load_row<V>(b.from.data + row * b.from.stride, b.columns, state);
        for (int v = 0; v < V; v++) {
            by_key[chain][v] = fma(broadcast(b.keys + row), state[v], by_key[chain][v]);
            by_query[chain][v] = fma(broadcast(b.queries + row), state[v], by_query[chain][v]);
            store_lanes(b.state + row * BLOCK + v * WIDTH, state[v]);
        }
    });
    for (int64_t i = 0; i < b.num_tokens; i++) {
        const lanes_t decay = broadcast(b.decay + i);
        const float* key = b.keys + i * b.key_stride;
        lanes_t delta[V], out[V];
        for (int v = 0; v < V; v++) {
            const lanes_t recalled = decay * (by_key[0][v] + by_key[1][v]);
            delta[v] = (load_lanes(b.values + i * BLOCK + v * WIDTH) - recalled) * b.scale[i];
            out[v] = fma(broadcast(b.products + i), delta[v], decay * (by_query[0][v] + by_query[1][v]));
        }
        write(i, out);
        const auto updated = [&](int64_t row, lanes_t* state) __attribute__((always_inline)) {
            for (int v = 0; v < V; v++)
                state[v] = fma(broadcast(key + row), delta[v], load_lanes(b.state + row * BLOCK + v * WIDTH) * decay);
        };
        if (i + 1 == b.num_tokens) return store_rows<V>(b.to, b.num_rows, b.columns, updated);
        const float *next_key = key + b.key_stride, *next_query = b.queries + (i + 1) * b.key_stride;
        for (int chain = 0; chain < 2; chain++)
            for (int v = 0; v < V; v++) by_key[chain][v] = by_query[chain][v] = lanes_t{};
        each_row(b.num_rows, [&](int64_t row, int chain) __attribute__((always_inline)) {
            lanes_t state[V];
            updated(row, state);
            for (int v = 0; v < V; v++) {
                by_key[chain][v] = fma(broadcast(next_key + row), state[v], by_key[chain][v]);
                by_query[chain][v] = fma(broadcast(next_query + row), state[v], by_query[chain][v]);
                store_lanes(b.state + row * BLOCK + v * WIDTH, state[v]);
            }
        });
    }
}

// Gated delta rule of a single token. Its state is read where it is: in strips of columns for the sums, then in the order
// of memory, while it is updated and the next state is fetched. (Block by block, with a copy between both, a step of 8
// rows took 10.4 ms in 18 layers of 16 heads of 128 x 128 instead of 6.)
template <typename Write>
void delta_token(const Block& b, Write write) {
    Ahead ahead = b.ahead;
    const lanes_t decay = broadcast(b.decay);
    lanes_t delta[MOST_COLUMNS / WIDTH];
    for (int64_t c = 0; c < b.columns; c += STRIP * WIDTH) {
        lanes_t by_key[2][STRIP] = {}, by_query[2][STRIP] = {}, out[STRIP];
        each_row(b.num_rows, [&](int64_t row, int chain) __attribute__((always_inline)) {
            const lanes_t key = broadcast(b.keys + row), query = broadcast(b.queries + row);
            ahead.fetch();
            for (int v = 0; v < STRIP; v++) {
                const lanes_t state = load_lanes(b.from.data + row * b.from.stride + c + v * WIDTH);
                by_key[chain][v] = fma(key, state, by_key[chain][v]);
                by_query[chain][v] = fma(query, state, by_query[chain][v]);
            }
        });
        for (int v = 0; v < STRIP; v++) {
            const lanes_t recalled = decay * (by_key[0][v] + by_key[1][v]);
            const lanes_t change = (load_lanes(b.values + c + v * WIDTH) - recalled) * b.scale[0];
            out[v] = fma(broadcast(b.products), change, decay * (by_query[0][v] + by_query[1][v]));
            delta[c / WIDTH + v] = change;
        }
        write(c, out);
    }
    const bool is_past_caches = is_streamed(b.to, b.columns);
    for (int64_t row = 0; row < b.num_rows; row++) {
        const lanes_t key = broadcast(b.keys + row);
        const float* from = b.from.data + row * b.from.stride;
        float* to = b.to.data + row * b.to.stride;
        for (int64_t c = 0; c < b.columns; c += WIDTH) {
            ahead.fetch();
            const lanes_t state = fma(key, delta[c / WIDTH], load_lanes(from + c) * decay);
            is_past_caches ? stream(to + c, state) : store_lanes(to + c, state);
        }
    }
}

// Mamba-2: keys are B, queries C; `scale` is dt.
template <int V, typename Write>
void mamba2_tile(const Block& b, Write write) {
    each_row(b.num_rows, [&](int64_t row, int) __attribute__((always_inline)) {
        lanes_t state[V] = {};
        if (b.from.data) load_row<V>(b.from.data + row * b.from.stride, b.columns, state);
        store_row<V>(b.state + row * BLOCK, V * WIDTH, state);
    });
    for (int64_t i = 0; i < b.num_tokens; i++) {
        const lanes_t decay = broadcast(b.decay + i);
        const float *key = b.keys + i * b.key_stride, *query = b.queries + i * b.key_stride;
        lanes_t values[V], out[2][V] = {};
        for (int v = 0; v < V; v++) values[v] = load_lanes(b.values + i * BLOCK + v * WIDTH) * b.scale[i];
        each_row(b.num_rows, [&](int64_t row, int chain) __attribute__((always_inline)) {
            for (int v = 0; v < V; v++) {
                float* at = b.state + row * BLOCK + v * WIDTH;
                const lanes_t state = fma(broadcast(key + row), values[v], load_lanes(at) * decay);
                out[chain][v] = fma(broadcast(query + row), state, out[chain][v]);
                store_lanes(at, state);
            }
        });
        for (int v = 0; v < V; v++)
            out[0][v] = fma(broadcast(&b.skip), load_lanes(b.values + i * BLOCK + v * WIDTH), out[0][v] + out[1][v]);
        write(i, out[0]);
    }
    store_rows<V>(b.to, b.num_rows, b.columns, [&](int64_t row, lanes_t* state) __attribute__((always_inline)) {
        load_row<V>(b.state + row * BLOCK, V * WIDTH, state);
    });
}

// Mamba-2 of a single token, in one pass over its state.
template <typename Write>
void mamba2_token(const Block& b, Write write) {
    Ahead ahead = b.ahead;
    const lanes_t decay = broadcast(b.decay);
    const bool is_past_caches = is_streamed(b.to, b.columns);
    for (int64_t c = 0; c < b.columns; c += STRIP * WIDTH) {
        lanes_t values[STRIP], out[2][STRIP] = {};
        for (int v = 0; v < STRIP; v++) values[v] = load_lanes(b.values + c + v * WIDTH) * b.scale[0];
        each_row(b.num_rows, [&](int64_t row, int chain) __attribute__((always_inline)) {
            const lanes_t key = broadcast(b.keys + row), query = broadcast(b.queries + row);
            const float* from = b.from.data + row * b.from.stride + c;
            float* to = b.to.data + row * b.to.stride + c;
            for (int v = 0; v < STRIP; v++) {
                ahead.fetch();
                const lanes_t state = fma(key, values[v], load_lanes(from + v * WIDTH) * decay);
                out[chain][v] = fma(query, state, out[chain][v]);
                is_past_caches ? stream(to + v * WIDTH, state) : store_lanes(to + v * WIDTH, state);
            }
        });
        for (int v = 0; v < STRIP; v++)
            out[0][v] = fma(broadcast(&b.skip), load_lanes(b.values + c + v * WIDTH), out[0][v] + out[1][v]);
        write(c, out[0]);
    }
}

// What the driver needs of an op: sizes, and the places of channels and gates.
template <typename T>
struct DeltaRule : DeltaInputs<T> {
    typedef GatedDelta<T> Op;
    typedef T Value;
    using DeltaInputs<T>::a;
    int64_t num_groups() const { return a.num_k_heads; }
    int64_t num_heads() const { return a.num_v_heads; }
    int64_t num_rows() const { return a.head_k_dim; }
    int64_t num_columns() const { return a.head_v_dim; }
    int64_t head(int64_t group, int64_t i) const {
        return a.tiles_heads ? group + i * num_groups() : group * (num_heads() / num_groups()) + i;
    }

    // Decay and beta of a head in up to TILE tokens, from gates(token's index, number of the gate).
    template <typename Gates>
    void finish_gates(int64_t head, Gates gates, float* decay, float* scale) const {
        const vec rate = softplus(gates(a.num_v_heads + head) + a.dt_bias[head]) * positive_exp(a.a_log[head]);
        store(decay, exp_nonpositive(-rate));
        store(scale, sigmoid(gates(head)));
    }
    float skip(int64_t) const { return 0; }
    template <int V, typename Write>
    static void run(const Block& block, Write write) { delta_tile<V>(block, write); }
    template <typename Write>
    static void run_token(const Block& block, Write write) { delta_token(block, write); }
};

template <typename T>
struct Mamba2Rule {
    typedef Mamba2<T> Op;
    typedef T Value;
    const Op& a;
    int64_t num_groups() const { return a.num_groups; }
    int64_t num_heads() const { return a.num_heads; }
    int64_t num_rows() const { return a.state_size; }
    int64_t num_columns() const { return a.head_dim; }
    int64_t head(int64_t group, int64_t i) const { return group * (a.num_heads / a.num_groups) + i; }
    int64_t key_channel(int64_t group) const { return a.num_heads * a.head_dim + group * a.state_size; }
    int64_t query_channel(int64_t group) const { return key_channel(a.num_groups + group); }
    int64_t value_channel(int64_t head) const { return head * a.head_dim; }
    int64_t num_channels() const { return query_channel(a.num_groups); }
    int64_t num_gates() const { return a.num_heads; }
    const float* bias() const { return a.bias; }
    const T* channels(int64_t token) const { return a.xbc + token * a.xbc_token; }
    const T* gates(int64_t token) const { return a.dt + token * a.dt_token; }
    float finish_keys(float*, float*) const { return 0; }

    template <typename Gates>
    void finish_gates(int64_t head, Gates gates, float* decay, float* scale) const {
        vec dt = softplus(gates(head) + a.dt_bias[head]);
        dt = where(dt < splat(a.dt_min), splat(a.dt_min), dt);
        dt = where(dt > splat(a.dt_max), splat(a.dt_max), dt);
        store(decay, exp_nonpositive(-(dt * positive_exp(a.a_log[head]))));
        store(scale, dt);
    }
    float skip(int64_t head) const { return a.d[head]; }
    template <int V, typename Write>
    static void run(const Block& block, Write write) { mamba2_tile<V>(block, write); }
    template <typename Write>
    static void run_token(const Block& block, Write write) { mamba2_token(block, write); }
};

// Blocks [begin, end) of a group's heads in a row: block i is number i % (blocks of a head) of head i / that.
struct Item {
    int64_t row, group, begin, end;
};

template <typename Rule>
class Run {
    typedef typename Rule::Value T;
    typedef typename Rule::Op Op;

   public:
    Run(const Op& a, const Rule& rule, const Item& item, const Item& next)
        : a(a), rule(rule), item(item), next(next), sequence(a, item.row, rule.num_channels(), rule.num_gates()),
          num_rows(rule.num_rows()), key_stride(padded(num_rows)),
          blocks_per_head((rule.num_columns() + BLOCK - 1) / BLOCK) {
        const int64_t block = num_rows * BLOCK;
        keys = (float*)scratch((2 * TILE * key_stride + TILE * (BLOCK + 3) + (1 + item.end - item.begin) * block) * sizeof(float));
        queries = keys + TILE * key_stride, values = queries + TILE * key_stride;
        decay = values + TILE * BLOCK, scale = decay + TILE, products = scale + TILE;
        state = products + TILE, passed = state + block;
    }

    void run() {
        keep_inputs();
        int64_t from = sequence.source, at = 0, next = 0;  // from: slot, or a Place
        const int64_t num_kept = sequence.num_kept();
        do {
            int64_t stop = std::min(sequence.length, at + TILE);
            if (next < num_kept) stop = std::min(stop, sequence.kept(next).end);
            const int64_t first = next;
            while (next < num_kept && sequence.kept(next).end == stop) next++;
            const int64_t to = first < next ? sequence.kept(first).slot : int64_t(PASSED);
            take(at, stop, from, to);
            for (int64_t k = first + 1; k < next; k++) take(stop, stop, to, sequence.kept(k).slot);
            from = to, at = stop;
        } while (at < sequence.length || next < num_kept);
    }

   private:
    enum Place : int64_t { ZEROS = -1, PASSED = -2 };  // PASSED: what a tile leaves to the next

    const Op& a;
    const Rule& rule;
    const Item item, next;
    const Sequence<Op, T> sequence;
    const int64_t num_rows, key_stride, blocks_per_head;
    float *keys, *queries, *values, *decay, *scale, *products, *state, *passed;

    int64_t head(int64_t block) const { return rule.head(item.group, block / blocks_per_head); }
    int64_t column(int64_t block) const { return block % blocks_per_head * BLOCK; }
    int64_t num_columns(int64_t block) const { return std::min(BLOCK, rule.num_columns() - column(block)); }
    Columns place(int64_t of, int64_t block) const {
        if (of == ZEROS) return {nullptr, 0, false};
        if (of == PASSED) return {passed + (block - item.begin) * num_rows * BLOCK, BLOCK, false};
        return slot(of, item.group, block);
    }
    Columns slot(int64_t of, int64_t group, int64_t block) const {
        const int64_t head = rule.head(group, block / blocks_per_head), width = rule.num_columns();
        return {a.state + of * a.state_slot + head * num_rows * width + column(block), width, true};
    }
    // State that this thread most likely reads after the blocks before `block`, so many columns of it.
    Ahead ahead(int64_t from, int64_t block, int64_t columns) const {
        const bool is_here = block < item.end;
        const int64_t of = is_here ? from : a.sources[next.row];
        if (of < 0) return {nullptr, 0, 0, 0};
        const Columns read = is_here ? place(of, block) : slot(of, next.group, next.begin);
        return {read.data, read.stride, columns, num_rows};
    }
    const T* channels(int64_t i) const { return sequence.channels(rule, i); }
    const T* gates(int64_t i) const { return sequence.gates(rule, i); }

    // Passes tokens [at, stop) through the item's blocks.
    void take(int64_t at, int64_t stop, int64_t from, int64_t to) {
        const int64_t num_tokens = stop - at;
        if (num_tokens) {
            sequence.convolve(rule, at, stop, rule.key_channel(item.group), num_rows, keys, key_stride);
            sequence.convolve(rule, at, stop, rule.query_channel(item.group), num_rows, queries, key_stride);
            for (int64_t i = 0; i < num_tokens; i++)
                products[i] = rule.finish_keys(keys + i * key_stride, queries + i * key_stride);
        }
        for (int64_t block = item.begin, end; block < item.end; block = end) {
            const int64_t of_token = num_tokens == 1 && from >= 0 ? columns_of_token(block) : 0;
            const int64_t columns = of_token ? of_token : num_columns(block);
            end = block + (columns + BLOCK - 1) / BLOCK;
            const Block b = {place(from, block), place(to, block), num_rows, columns, num_tokens, keys, queries, key_stride,
                             values, decay, scale, state, products, rule.skip(head(block)), ahead(from, end, columns)};
            if (!num_tokens) {
                b.copy();
                continue;
            }
            if (block == item.begin || !column(block)) gate(at, stop, head(block));
            sequence.convolve(rule, at, stop, rule.value_channel(head(block)) + column(block), columns, values, BLOCK);
            if (of_token)
                Rule::run_token(b, [&](int64_t c, const lanes_t* out) { put(block, c, at, STRIP * WIDTH, (const float*)out); });
            else columns > WIDTH ? pass<VECTORS>(b, block, at) : pass<1>(b, block, at);
        }
    }

    // Number of columns from this block on that a single token takes together: whole strips of a head, or none.
    int64_t columns_of_token(int64_t block) const {
        const int64_t columns = std::min({MOST_COLUMNS, (item.end - block) * BLOCK, rule.num_columns() - column(block)});
        return columns % (STRIP * WIDTH) ? 0 : columns;
    }

    template <int V>
    void pass(const Block& b, int64_t block, int64_t at) const {
        Rule::template run<V>(b, [&](int64_t i, const lanes_t* out) { put(block, 0, at + i, b.columns, (const float*)out); });
    }
    // Writes a token's result in so many columns of the block, from c on.
    void put(int64_t block, int64_t c, int64_t i, int64_t columns, const float* result) const {
        if (!sequence.is_own(i)) return;
        const int64_t width = rule.num_columns(), at = sequence.token(i) * rule.num_heads() + head(block);
        T* out = a.out + at * width + column(block) + c;
        for (int64_t d = 0; d < columns; d += LANES) store_part(out + d, load_part(result + d, columns - d), columns - d);
    }

    void gate(int64_t at, int64_t stop, int64_t head) {
        rule.finish_gates(head, [&](int64_t gate) {
            float lanes[LANES] = {};
            for (int64_t i = at; i < stop; i++) lanes[i - at] = to_float(gates(i)[gate]);
            return load(lanes);
        }, decay, scale);
    }

    // Writes the raw inputs that slots keep, of the item's share of channels and gates.
    void keep_inputs() const {
        if (item.begin == 0) {
            sequence.keep_channels(rule, rule.key_channel(item.group), num_rows);
            sequence.keep_channels(rule, rule.query_channel(item.group), num_rows);
        }
        for (int64_t block = item.begin; block < item.end; block++) {
            sequence.keep_channels(rule, rule.value_channel(head(block)) + column(block), num_columns(block));
            if (!column(block)) sequence.keep_drafts([&](T* to, int64_t i) {
                for (int64_t gate = head(block); gate < rule.num_gates(); gate += rule.num_heads())
                    to[rule.num_channels() + gate] = gates(i)[gate];
            });
        }
    }
};

template <typename Rule>
void run_rows(const typename Rule::Op& a, const Team* team) {
    const Rule rule = {a};
    together(team, a.num_threads, [&](const Team& team) {
        const int64_t blocks_per_head = (rule.num_columns() + BLOCK - 1) / BLOCK;
        const int64_t num_blocks = rule.num_heads() / rule.num_groups() * blocks_per_head;  // of a group
        const int64_t num_groups = a.num_rows * rule.num_groups();
        // Few groups are cut, so that every thread has work, and large ones, so that a tile's states stay in the cache;
        // each part convolves the group's keys again.
        const int64_t wanted = num_groups ? (2 * team.num_threads + num_groups - 1) / num_groups : 1;
        const int64_t num_parts = std::min(num_blocks, std::max(wanted, (num_blocks + MOST_BLOCKS - 1) / MOST_BLOCKS));
        const auto item = [&](int64_t i) {
            const int64_t part = i % num_parts, group = i / num_parts;
            return Item{group / rule.num_groups(), group % rule.num_groups(), num_blocks * part / num_parts,
                        num_blocks * (part + 1) / num_parts};
        };
        const auto run = [&](int64_t i, int64_t next) { Run<Rule>(a, rule, item(i), item(next)).run(); };
        int64_t longest = 0;
        for (int64_t row = 0; row < a.num_rows; row++)
            longest = std::max<int64_t>(longest, a.query_start_loc[row + 1] - a.query_start_loc[row]);
        if (longest <= TILE) team.share_out(num_groups * num_parts, run);
        else team.take(num_groups * num_parts, [&](int64_t i) { run(i, i); });
        finish_streams();
    });
}

template <typename T>
void gated_delta(const GatedDelta<T>& a, const Team* team) {
    a.a_dim == 1 ? run_rows<DeltaRule<T>>(a, team) : channel_delta(a, team);
}

template <typename T>
void mamba2(const Mamba2<T>& a, const Team* team) {
    run_rows<Mamba2Rule<T>>(a, team);
}

}  // namespace

SPLITFUSE_OP(gated_delta, GatedDelta)
SPLITFUSE_OP(mamba2, Mamba2)
