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

template <typename Scalar, typename T>
void multiply(const Linear<T>& a, const Team& team) {
    const int64_t padded = (a.num_inputs + BLOCK - 1) / BLOCK * BLOCK;
#ifdef SPLITFUSE_AMX
    if constexpr (std::is_same<T, bf16>::value)
        if (amx::is_allowed()) return multiply_tiles(Pairs{(const uint32_t*)a.data, padded}, a, team);
#endif
    const T* rows = padded_rows<T>(a.x, a.num_rows, a.num_inputs, padded, team);
    const int64_t num_steps = padded * sizeof(T) / sizeof(Scalar);
    DensePanels<Scalar, T> weight{
        (const Scalar*)a.data, (const Scalar*)rows, a.bias, a.out, a.num_outputs, a.out_row, num_steps, 0};
    multiply_panels(weight, a.num_rows, team);
}

template <typename Scalar, typename T>
void linear(const Linear<T>& a, const Team* team) {
    together(team, threads_for(a.num_rows * a.num_outputs * a.num_inputs, a.num_threads),
             [&](const Team& team) { multiply<Scalar>(a, team); });
}

template <typename Scalar, typename T>
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
    const int64_t num_steps = padded * sizeof(T) / sizeof(Scalar);
    const auto panels = [&](const Linear<T>& weight) {
        return DensePanels<Scalar, T>{
            (const Scalar*)weight.data, (const Scalar*)rows, weight.bias, a.out, a.num_outputs, a.out_row, num_steps, 0};
    };
    groups.walk(team, [&](const Linear<T>& weight, int64_t number, int64_t begin, int64_t end, auto next) {
        const auto w = panels(weight);
        const Scalar* ahead = panels(next.weight).panel(next.number);
        multiply_panel<MOST>(w, number, begin, end, ahead, ahead == w.panel(number) ? 0 : w.num_bytes());
    });
}

template <typename Scalar, typename T>
void grouped_linear(const GroupedLinear<T>& a, const Team* team) {
    together(team, threads_for(a.num_rows * a.num_outputs * a.num_inputs, a.num_threads),
             [&](const Team& team) { multiply_groups<Scalar>(a, team); });
}

}  // namespace

extern "C" void linear_float32(const Linear<float>& a, const Team* team) { linear<float>(a, team); }
extern "C" void linear_bfloat16(const Linear<bf16>& a, const Team* team) { linear<pair>(a, team); }
extern "C" void grouped_linear_float32(const GroupedLinear<float>& a, const Team* team) { grouped_linear<float>(a, team); }
extern "C" void grouped_linear_bfloat16(const GroupedLinear<bf16>& a, const Team* team) { grouped_linear<pair>(a, team); }
