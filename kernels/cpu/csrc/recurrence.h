// Row's sequence of raw inputs in a recurrent layer, and the slots that keep a state of it.
#pragma once

#include "arguments.h"
#include "team.h"

// Gated delta rule whose decay differs by row of the state.
template <typename T>
void channel_delta(const GatedDelta<T>& a, const Team* team);

constexpr int64_t MAX_TAPS = 8;

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
};
