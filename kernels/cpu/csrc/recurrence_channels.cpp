// Kimi Delta Attention (Kimi Team 2025, arXiv 2510.26692), token by token: a gated delta rule whose decay differs by row
// of the state. Columns, chains of sums and tiles are those of recurrence_state.cpp. A head has its own keys, so an item
// of work is a head of a row of the batch, all of whose columns share the tile's keys and decays.

#include <algorithm>

#include "recurrence.h"

namespace {

#ifdef __AVX512F__
constexpr int VECTORS = 2;  // of a block's columns: 16 KiB of state with 128 rows
#else
constexpr int VECTORS = 1;
#endif
constexpr int64_t BLOCK = VECTORS * LANES;

template <typename T>
class ChannelHead {
   public:
    ChannelHead(const GatedDelta<T>& a, int64_t row, int64_t head)
        : a(a), inputs{a}, head(head), num_rows(a.head_k_dim), num_columns(a.head_v_dim), stride(padded(num_rows)),
          num_channels(inputs.num_channels()), sequence(a, row, num_channels, inputs.num_gates()) {
        const int64_t tile = TILE * stride, block = num_rows * BLOCK;
        keys = (float*)scratch((5 * tile + TILE * (BLOCK + 2) + block + num_rows * padded(num_columns)) * sizeof(float));
        queries = keys + tile, decays = queries + tile, decayed_keys = decays + tile, decayed_queries = decayed_keys + tile;
        values = decayed_queries + tile, betas = values + TILE * BLOCK, products = betas + TILE;
        state = products + TILE, passed = state + block;
    }

    void run() {
        keep_inputs();
        const float* from = sequence.source < 0 ? nullptr : slot(sequence.source);
        int64_t next = 0;
        for (int64_t at = 0, stop; at < sequence.length || next < sequence.num_kept(); at = stop) {
            stop = std::min(sequence.length, at + TILE);
            if (next < sequence.num_kept()) stop = std::min(stop, sequence.kept(next).end);
            const bool is_kept = next < sequence.num_kept() && sequence.kept(next).end == stop;
            float* to = is_kept ? slot(sequence.kept(next++).slot) : passed;
            if (at < stop) take(at, stop, from, to);
            else copy(from, to);
            from = to;
        }
    }

   private:
    const GatedDelta<T>& a;
    const DeltaInputs<T> inputs;
    const int64_t head, num_rows, num_columns, stride, num_channels;
    const Sequence<GatedDelta<T>, T> sequence;
    float *keys, *queries, *decays, *decayed_keys, *decayed_queries;  // [TILE][stride]
    float *values;                                                    // [TILE][BLOCK]
    float *betas, *products;                                          // [TILE]; products: key · query
    float *state, *passed;  // [num_rows][BLOCK]; [num_rows][num_columns], from a tile to the next

    float* slot(int64_t number) const { return a.state + number * a.state_slot + head * num_rows * num_columns; }
    int64_t decay_gate() const { return a.num_v_heads + head * num_rows; }
    const T* gates(int64_t i) const { return sequence.gates(inputs, i); }

    void copy(const float* from, float* to) const {
        if (from) std::memcpy(to, from, num_rows * num_columns * sizeof(float));
        else std::memset(to, 0, num_rows * num_columns * sizeof(float));
    }

    // Passes tokens [at, stop) through all blocks of columns.
    void take(int64_t at, int64_t stop, const float* from, float* to) {
        sequence.convolve(inputs, at, stop, inputs.key_channel(head), num_rows, keys, stride);
        sequence.convolve(inputs, at, stop, inputs.query_channel(head), num_rows, queries, stride);
        for (int64_t i = 0; i < stop - at; i++) finish_token(i, gates(at + i));
        for (int64_t column = 0; column < num_columns; column += BLOCK) {
            const int64_t count = std::min(BLOCK, num_columns - column);
            sequence.convolve(inputs, at, stop, inputs.value_channel(head) + column, count, values, BLOCK);
            if (count > LANES) pass<VECTORS>(at, stop, from ? from + column : nullptr, to + column, column);
            else pass<1>(at, stop, from ? from + column : nullptr, to + column, column);
        }
    }

    // Divides a token's keys and queries by their norms, and computes its decays and beta.
    void finish_token(int64_t i, const T* gates) {
        float *key = keys + i * stride, *query = queries + i * stride, *decay = decays + i * stride;
        products[i] = inputs.finish_keys(key, query);
        const vec rate = positive_exp(a.a_log[head]);
        for (int64_t d = 0; d < num_rows; d += LANES) {
            const int64_t left = num_rows - d;
            const vec gate = load_part(gates + decay_gate() + d, left) + load_part(a.dt_bias + head * num_rows + d, left);
            const vec kept = exp_nonpositive(-(softplus(gate) * rate));
            store(decay + d, kept);
            store(decayed_keys + i * stride + d, load(key + d) * kept);
            store(decayed_queries + i * stride + d, load(query + d) * kept);
        }
        betas[i] = sigmoid(splat(to_float(gates[head])))[0];
    }

    // A block of columns. A token's sums (g · k)ᵀS and (g · q)ᵀS are taken while the state of the token before is
    // written; its output qᵀS' is (g · q)ᵀS + (q · k) · delta.
    template <int V>
    void pass(int64_t at, int64_t stop, const float* from, float* to, int64_t column) {
        const int64_t count = std::min<int64_t>(V * LANES, num_columns - column);
        vec by_key[2][V] = {}, by_query[2][V] = {};
        const auto sum_up = [&](int64_t i, int64_t row, const vec* of) __attribute__((always_inline)) {
            const vec key = splat(decayed_keys[i * stride + row]), query = splat(decayed_queries[i * stride + row]);
            for (int v = 0; v < V; v++) {
                by_key[row & 1][v] = fma(key, of[v], by_key[row & 1][v]);
                by_query[row & 1][v] = fma(query, of[v], by_query[row & 1][v]);
                store(state + row * BLOCK + v * LANES, of[v]);
            }
        };
        for (int64_t row = 0; row < num_rows; row++) {
            vec first[V] = {};
            for (int v = 0; from && v < V; v++) first[v] = load_part(from + row * num_columns + v * LANES, count - v * LANES);
            sum_up(0, row, first);
        }
        for (int64_t i = 0; i < stop - at; i++) {
            vec delta[V], now[V];
            for (int v = 0; v < V; v++) {
                delta[v] = (load(values + i * BLOCK + v * LANES) - (by_key[0][v] + by_key[1][v])) * betas[i];
                now[v] = fma(splat(products[i]), delta[v], by_query[0][v] + by_query[1][v]);
                by_key[0][v] = by_key[1][v] = by_query[0][v] = by_query[1][v] = vec{};
            }
            if (sequence.is_own(at + i)) {
                T* out = a.out + (sequence.token(at + i) * a.num_v_heads + head) * num_columns + column;
                for (int v = 0; v < V; v++) store_part(out + v * LANES, now[v], count - v * LANES);
            }
            for (int64_t row = 0; row < num_rows; row++) {
                const vec key = splat(keys[i * stride + row]), decay = splat(decays[i * stride + row]);
                for (int v = 0; v < V; v++) now[v] = fma(key, delta[v], load(state + row * BLOCK + v * LANES) * decay);
                if (at + i + 1 < stop) sum_up(i + 1, row, now);
                else
                    for (int v = 0; v < V; v++) store_part(to + row * num_columns + v * LANES, now[v], count - v * LANES);
            }
        }
    }

    // Writes the raw inputs that slots keep, of the head's share of channels and gates.
    void keep_inputs() const {
        sequence.keep_channels(inputs, inputs.key_channel(head), num_rows);
        sequence.keep_channels(inputs, inputs.query_channel(head), num_rows);
        sequence.keep_channels(inputs, inputs.value_channel(head), num_columns);
        sequence.keep_drafts([&](T* to, int64_t i) {
            to[num_channels + head] = gates(i)[head];
            std::memcpy(to + num_channels + decay_gate(), gates(i) + decay_gate(), num_rows * sizeof(T));
        });
    }
};

}  // namespace

template <typename T>
void channel_delta(const GatedDelta<T>& a, const Team* team) {
    together(team, a.num_threads, [&](const Team& team) {
        team.take(a.num_rows * a.num_v_heads, [&](int64_t i) { ChannelHead<T>(a, i / a.num_v_heads, i % a.num_v_heads).run(); });
    });
}

template void channel_delta(const GatedDelta<float>& a, const Team* team);
template void channel_delta(const GatedDelta<bf16>& a, const Team* team);
