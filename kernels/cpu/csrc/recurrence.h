// Row's sequence of raw inputs in a recurrent layer, and the slots that keep a state of it.
#pragma once

#include "arguments.h"

// Gated delta rule whose decay differs by row of the state.
template <typename T>
void channel_delta(const GatedDelta<T>& a, const Team* team);

constexpr int64_t MAX_TAPS = 8;
constexpr int64_t TILE = LANES;  // tokens; gates are computed in the lanes of one vector

inline int64_t padded(int64_t size) { return (size + LANES - 1) / LANES * LANES; }
inline vec positive_exp(float x) {  // e^x
    return x < 0 ? exp_nonpositive(splat(x)) : 1.0f / exp_nonpositive(splat(-x));
}

// Raw inputs of a gated delta rule.
template <typename T>
struct DeltaInputs {
    const GatedDelta<T>& a;

    int64_t key_channel(int64_t group) const { return (a.num_k_heads + group) * a.head_k_dim; }
    int64_t query_channel(int64_t group) const { return group * a.head_k_dim; }
    int64_t value_channel(int64_t head) const { return 2 * a.num_k_heads * a.head_k_dim + head * a.head_v_dim; }
    int64_t num_channels() const { return value_channel(a.num_v_heads); }
    const float* bias() const { return nullptr; }
    int64_t num_gates() const { return a.num_v_heads * (1 + a.a_dim); }
    const T* channels(int64_t token) const { return a.qkv + token * a.qkv_token; }
    const T* gates(int64_t token) const { return a.gates + token * a.gates_token; }

    // Divides keys and queries [padded rows] by their norms, and returns their product.
    float finish_keys(float* key, float* query) const {
        const float by_key = 1.0f / std::sqrt(dot(key, key) + 1e-6f);
        const float by_query = 1.0f / std::sqrt(dot(query, query) + 1e-6f) / std::sqrt(float(a.head_k_dim));
        for (int64_t d = 0; d < a.head_k_dim; d += LANES) {
            store(key + d, load(key + d) * by_key);
            store(query + d, load(query + d) * by_query);
        }
        return dot(key, query);
    }

   private:
    float dot(const float* x, const float* y) const {
        vec total = {};
        for (int64_t d = 0; d < a.head_k_dim; d += LANES) total = fma(load(x + d), load(y + d), total);
        return sum(total);
    }
};

// State after `end` tokens of the sequence goes to `slot`.
struct Kept {
    int64_t end, slot;
};

// Tokens [-num_taps + 1, 0) are the source's convolution | [0, num_replayed) its tail | [.., length) the row's own, of
// which those from num_certain on are drafts.
template <typename Op, typename T>
class Sequence {
   public:
    const int64_t row, begin, num_replayed, length, num_certain;  // begin: the row's first token in the batch

    Sequence(const Op& a, int64_t row, int64_t num_channels, int64_t num_gates)
        : row(row), begin(a.query_start_loc[row]), num_replayed(a.num_replayed[row]),
          length(num_replayed + a.query_start_loc[row + 1] - begin), num_certain(length - a.num_drafts[row]),
          source(a.sources[row]), a(a), num_channels(num_channels), tail_row(num_channels + num_gates) {}

    const int64_t source;

    // Raw inputs of a token before the row's own ones; null: zeros.
    const T* earlier(int64_t i) const {
        if (i >= 0) return a.tail + source * a.tail_slot + i * tail_row;
        return source < 0 ? nullptr : a.conv + source * a.conv_slot + (i + a.num_taps - 1) * num_channels;
    }
    bool is_own(int64_t i) const { return i >= num_replayed; }
    int64_t token(int64_t i) const { return begin + i - num_replayed; }  // its place in the batch

    int64_t num_kept() const { return num_checkpoints() + (a.targets[row] >= 0); }
    Kept kept(int64_t i) const {
        if (i == num_checkpoints()) return {num_certain, a.targets[row]};
        const int64_t checkpoint = a.checkpoint_loc[row] + i;
        return {a.checkpoint_ends[checkpoint], a.checkpoint_slots[checkpoint]};
    }

    // Raw inputs of any token, where `op` has those of the batch; without channels: zeros.
    template <typename Inputs>
    const T* channels(const Inputs& op, int64_t i) const { return is_own(i) ? op.channels(token(i)) : earlier(i); }
    template <typename Inputs>
    const T* gates(const Inputs& op, int64_t i) const { return is_own(i) ? op.gates(token(i)) : earlier(i) + num_channels; }

    // out [TILE][stride] = silu(convolution) of channels [channel, channel + count).
    template <typename Inputs>
    void convolve(const Inputs& op, int64_t at, int64_t stop, int64_t channel, int64_t count, float* out,
                  int64_t stride) const {
        const T* inputs[TILE + MAX_TAPS];
        for (int64_t i = at - a.num_taps + 1; i < stop; i++) inputs[i - at + a.num_taps - 1] = channels(op, i);
        for (int64_t c = 0; c < count; c += LANES) {
            if (a.num_taps == 4) convolve<4>(op.bias(), inputs, stop - at, channel + c, count - c, out + c, stride);
            else convolve<0>(op.bias(), inputs, stop - at, channel + c, count - c, out + c, stride);
        }
    }

    // Keeps these channels of all raw inputs that slots keep.
    template <typename Inputs>
    void keep_channels(const Inputs& op, int64_t channel, int64_t count) const {
        keep_inputs([&](T* to, int64_t i) {
            if (const T* from = channels(op, i)) std::memcpy(to + channel, from + channel, count * sizeof(T));
            else std::memset(to + channel, 0, count * sizeof(T));
        });
    }

    // Calls copy(to, i) for every place that keeps the raw inputs of a token i: in convolutions, and the drafts' tail.
    template <typename Copy>
    void keep_inputs(Copy copy) const {
        for (int64_t k = 0; k < num_kept(); k++) {
            T* conv = a.conv + kept(k).slot * a.conv_slot;
            for (int64_t tap = 1; tap < a.num_taps; tap++)
                copy(conv + (tap - 1) * num_channels, kept(k).end - a.num_taps + tap);
        }
        keep_drafts(copy);
    }
    template <typename Copy>
    void keep_drafts(Copy copy) const {
        if (a.targets[row] < 0) return;
        for (int64_t i = num_certain; i < length; i++)
            copy(a.tail + a.targets[row] * a.tail_slot + (i - num_certain) * tail_row, i);
    }

   private:
    const Op& a;
    const int64_t num_channels, tail_row;

    int64_t num_checkpoints() const { return a.checkpoint_loc[row + 1] - a.checkpoint_loc[row]; }

    // A vector of channels; the last TAPS inputs (0: num_taps) stay in registers.
    template <int TAPS>
    void convolve(const float* bias, const T* const* inputs, int64_t num_tokens, int64_t channel, int64_t left, float* out,
                  int64_t stride) const {
        const int64_t num_taps = TAPS ? TAPS : a.num_taps;
        const auto input = [&](int64_t i) { return inputs[i] ? load_part(inputs[i] + channel, left) : vec{}; };
        vec weights[TAPS ? TAPS : MAX_TAPS], window[TAPS ? TAPS : MAX_TAPS];
        for (int64_t tap = 0; tap < num_taps; tap++) {
            weights[tap] = load_part(a.weight + tap * num_channels + channel, left);
            if (tap) window[tap] = input(tap - 1);
        }
        const vec first = bias ? load_part(bias + channel, left) : vec{};
        for (int64_t i = 0; i < num_tokens; i++) {
            for (int64_t tap = 1; tap < num_taps; tap++) window[tap - 1] = window[tap];
            window[num_taps - 1] = input(i + num_taps - 1);
            vec sum = first;
            for (int64_t tap = 0; tap < num_taps; tap++) sum = fma(weights[tap], window[tap], sum);
            store(out + i * stride, silu(sum));
        }
    }
};
