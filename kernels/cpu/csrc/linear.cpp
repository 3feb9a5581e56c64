// Matmuls with plain weights on the CPU, from one row to a prompt's rows: one layout, read once, at memory speed.
//
// Layout (made by linear.py): panels of PANEL outputs. A panel has, input by input, or for bfloat16 by pairs of
// neighbouring inputs, the weights of its outputs. Inputs are padded to a multiple of BLOCK.

#include "arguments.h"
#include "dense_panels.h"
#include "groups.h"
#include "padded_rows.h"
#include "tiles.h"

namespace {

#ifdef SPLITFUSE_AMX
struct Pairs {
    static constexpr int64_t AHEAD = 256;  // number of inputs that are prefetched
    const uint32_t* data;
    int64_t num_inputs;
    const uint32_t* pairs(int64_t number, int64_t begin, int64_t end, uint32_t*) const {
        const uint32_t* here = data + (number * num_inputs + begin) / 2 * PANEL;
        for (int64_t k = 0; k < end - begin; k++) __builtin_prefetch(here + (AHEAD + k) / 2 * PANEL + k % 2 * 16, 0, 2);
        return here;
    }
};
#endif

template <typename T>
void multiply(const Linear<T>& a, const Team& team) {
    const int64_t padded = (a.num_inputs + BLOCK - 1) / BLOCK * BLOCK;
#ifdef SPLITFUSE_AMX
    if constexpr (std::is_same<T, bf16>::value)
        if (amx::is_allowed()) return multiply_tiles(Pairs{(const uint32_t*)a.data, padded}, a, team);
#endif
    const T* rows = padded_rows<T>(a.x, a.num_rows, a.num_inputs, padded, team);
    const int64_t num_steps = padded * sizeof(T) / sizeof(ScalarOf<T>);
    DensePanels<ScalarOf<T>, T> weight{
        (const ScalarOf<T>*)a.data, (const ScalarOf<T>*)rows, a.bias, a.out, a.num_outputs, a.out_row, num_steps, 0};
    multiply_panels(weight, a.num_rows, team);
}

template <typename T>
void linear(const Linear<T>& a, const Team* team) {
    together(team, threads_for(a.num_rows * a.num_outputs * a.num_inputs, a.num_threads),
             [&](const Team& team) { multiply(a, team); });
}

template <typename T>
void multiply_groups(const GroupedLinear<T>& a, const Team& team) {
    const Groups<Linear<T>, GroupedLinear<T>> groups(a);
    const int64_t padded = (a.num_inputs + BLOCK - 1) / BLOCK * BLOCK;
    const T* rows = padded_rows<T>(a.x, a.num_rows, a.num_inputs, padded, team);
#ifdef SPLITFUSE_AMX
    if constexpr (std::is_same<T, bf16>::value)
        if (amx::is_allowed())
            return groups.walk(team, [&](const Linear<T>& weight, int64_t number, int64_t begin, int64_t end, auto) {
                multiply_tiles(Pairs{(const uint32_t*)weight.data, padded}, weight, rows, number, begin, end);
            });
#endif
    const int64_t num_steps = padded * sizeof(T) / sizeof(ScalarOf<T>);
    const auto panels = [&](const Linear<T>& weight) {
        return DensePanels<ScalarOf<T>, T>{
            (const ScalarOf<T>*)weight.data, (const ScalarOf<T>*)rows, weight.bias, a.out, a.num_outputs, a.out_row, num_steps, 0};
    };
    groups.walk(team, [&](const Linear<T>& weight, int64_t number, int64_t begin, int64_t end, auto next) {
        const auto w = panels(weight);
        const ScalarOf<T>* ahead = panels(next.weight).panel(next.number);
        multiply_panel<MOST>(w, number, begin, end, ahead, ahead == w.panel(number) ? 0 : w.num_bytes());
    });
}

template <typename T>
void grouped_linear(const GroupedLinear<T>& a, const Team* team) {
    together(team, threads_for(a.num_rows * a.num_outputs * a.num_inputs, a.num_threads),
             [&](const Team& team) { multiply_groups(a, team); });
}

// Rows are copied head by head first, so that a head's product is one of neighbouring rows.
template <typename T>
void multiply_heads(const HeadLinear<T>& a, const Team& team) {
    const int64_t padded = (a.num_inputs + BLOCK - 1) / BLOCK * BLOCK, num_panels = (a.num_outputs + PANEL - 1) / PANEL;
    T* rows = (T*)team.share(a.num_heads * a.num_tokens * padded * sizeof(T));
    team.each(a.num_heads * a.num_tokens, [&](int64_t row) {
        std::memcpy(rows + row * padded, a.x + row % a.num_tokens * a.x_token + row / a.num_tokens * a.x_head, a.num_inputs * sizeof(T));
        std::memset((void*)(rows + row * padded + a.num_inputs), 0, (padded - a.num_inputs) * sizeof(T));
    });
    team.barrier();
    const auto data_of = [&](int64_t head) { return (const T*)a.data + head * num_panels * PANEL * padded; };
    const auto walk = [&](auto product) {
        const int64_t parts = (a.num_tokens + ROWS - 1) / ROWS, of_head = num_panels * parts;
        team.share_out(a.num_heads * of_head, [&](int64_t item, int64_t) {
            const int64_t begin = item % parts * ROWS, end = begin + ROWS < a.num_tokens ? begin + ROWS : a.num_tokens;
            product(item / of_head, item % of_head / parts, begin, end);
        });
    };
#ifdef SPLITFUSE_AMX
    if constexpr (std::is_same<T, bf16>::value)
        if (amx::is_allowed())
            return walk([&](int64_t head, int64_t number, int64_t begin, int64_t end) {
                Linear<T> linear{};
                linear.out = a.out + head * a.out_head, linear.out_row = a.out_token, linear.num_outputs = a.num_outputs;
                const T* own = rows + head * a.num_tokens * padded;
                multiply_tiles(Pairs{(const uint32_t*)data_of(head), padded}, linear, own, number, begin, end);
            });
#endif
    walk([&](int64_t head, int64_t number, int64_t begin, int64_t end) {
        const DensePanels<ScalarOf<T>, T> w{
            (const ScalarOf<T>*)data_of(head), (const ScalarOf<T>*)(rows + head * a.num_tokens * padded), nullptr,
            a.out + head * a.out_head, a.num_outputs, a.out_token, int64_t(padded * sizeof(T) / sizeof(ScalarOf<T>)), 0};
        multiply_panel<MOST>(w, number, begin, end, w.panel(number), 0);
    });
}

template <typename T>
void head_linear(const HeadLinear<T>& a, const Team* team) {
    together(team, threads_for(a.num_tokens * a.num_heads * a.num_outputs * a.num_inputs, a.num_threads),
             [&](const Team& team) { multiply_heads(a, team); });
}

}  // namespace

SPLITFUSE_OP(linear, Linear)
SPLITFUSE_OP(head_linear, HeadLinear)
SPLITFUSE_OP(grouped_linear, GroupedLinear)
