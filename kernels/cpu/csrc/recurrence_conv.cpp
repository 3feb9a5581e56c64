// Short convolution of LFM2. A token's sum has one order, tap after tap, whatever the cut: no product but those of
// `fma` is fused with a sum (build.py compiles this file without contractions).

#include <vector>

#include "recurrence.h"

namespace {

constexpr int64_t TOKENS = 32;  // of an item

struct Item {
    int64_t row, begin, end;  // tokens of the sequence; [length, length): the inputs that slots keep
};

template <typename T>
class Convolved {
   public:
    Convolved(const ShortConv<T>& a, const Item& item) : a(a), sequence(a, item.row, a.hidden, 0), item(item) {}

    void run() const {
        for (int64_t c = 0; c < a.hidden; c += LANES) {
            if (item.begin < sequence.length) convolve(c);
            else sequence.keep_inputs([&](T* to, int64_t i) { store_part(to + c, input(i, c), a.hidden - c); });
        }
    }

   private:
    const ShortConv<T>& a;
    const Sequence<ShortConv<T>, T> sequence;
    const Item item;

    void convolve(int64_t c) const {
        const int64_t left = a.hidden - c;
        vec window[MAX_TAPS], weights[MAX_TAPS], bias = a.bias ? load_part(a.bias + c, left) : vec{};
        for (int64_t tap = 0; tap < a.num_taps; tap++) weights[tap] = load_part(a.weight + tap * a.hidden + c, left);
        for (int64_t tap = 1; tap < a.num_taps; tap++) window[tap] = input(item.begin - a.num_taps + tap, c);
        for (int64_t i = item.begin; i < item.end; i++) {
            for (int64_t tap = 1; tap < a.num_taps; tap++) window[tap - 1] = window[tap];
            window[a.num_taps - 1] = input(i, c);
            vec sum = bias;
            for (int64_t tap = 0; tap < a.num_taps; tap++) sum = fma(weights[tap], window[tap], sum);
            const int64_t token = sequence.token(i);
            sum *= load_part(a.bcx + token * a.bcx_token + a.hidden + c, left);
            store_part(a.out + token * a.hidden + c, sum, left);
        }
    }

    // B · x, rounded to T.
    vec input(int64_t i, int64_t c) const {
        const int64_t left = a.hidden - c;
        if (!sequence.is_own(i)) {
            const T* earlier = sequence.earlier(i);
            return earlier ? load_part(earlier + c, left) : vec{};
        }
        const T* b = a.bcx + sequence.token(i) * a.bcx_token + c;
        T rounded[LANES];
        store_rounded(rounded, load_part(b, left) * load_part(b + 2 * a.hidden, left));
        return load(rounded);
    }
};

template <typename T>
void short_conv(const ShortConv<T>& a, const Team* team) {
    together(team, a.num_threads, [&](const Team& team) {
        std::vector<Item> items;
        for (int64_t row = 0; row < a.num_rows; row++) {
            const Sequence<ShortConv<T>, T> sequence(a, row, a.hidden, 0);
            for (int64_t begin = sequence.num_replayed; begin < sequence.length; begin += TOKENS)
                items.push_back({row, begin, begin + TOKENS < sequence.length ? begin + TOKENS : sequence.length});
            items.push_back({row, sequence.length, sequence.length});
        }
        team.each(int64_t(items.size()), [&](int64_t i) { Convolved<T>(a, items[i]).run(); });
    });
}

}  // namespace

SPLITFUSE_OP(short_conv, ShortConv)
