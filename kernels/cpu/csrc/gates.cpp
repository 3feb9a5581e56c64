// Gates of recurrent layers and of attention, alone and with the norm of a recurrence's output, in float.

#include "arguments.h"

namespace {

// Normalises a group of columns in two passes over the first-level cache: the sum of squares, then the result.
template <typename T, typename W>
void norm_group(const GatedRmsNorm<T, W>& a, const T* x, const T* gate, const W* weight, T* out) {
    const int64_t size = a.group_size;
    const auto gated = [&](vec v, int64_t d) __attribute__((always_inline)) {
        const vec g = load_part(gate + d, size - d);
        return v * (a.is_sigmoid ? sigmoid(g) : silu(g));
    };
    const auto value = [&](int64_t d) __attribute__((always_inline)) {
        const vec v = load_part(x + d, size - d);
        return a.norm_before_gate ? v : gated(v, d);
    };
    vec squares = {};
    for (int64_t d = 0; d < size; d += LANES) {
        const vec v = value(d);
        squares += v * v;
    }
    const float scale = 1.0f / std::sqrt(sum(squares) / size + a.eps);
    for (int64_t d = 0; d < size; d += LANES) {
        vec v = value(d) * scale * load_part(weight + d, size - d);
        if (a.norm_before_gate) v = gated(v, d);
        store_part(out + d, v, size - d);
    }
}

template <typename T, typename W>
void gated_rms_norm(const GatedRmsNorm<T, W>& a, const Team* team) {
    const int64_t num_groups = a.width / a.group_size;
    each_item(a, team, a.num_rows * num_groups, a.num_rows * a.width >= 16384, [&](int64_t i) {
        const int64_t row = i / num_groups, column = i % num_groups * a.group_size, at = row * a.width + column;
        norm_group(a, a.x + at, a.gate + row * a.gate_row + column, a.weight + column % a.num_weights, a.out + at);
    });
}

template <typename T>
void gate_mul(const GateMul<T>& a, const Team* team) {
    each_item(a, team, a.num_rows, a.num_rows * a.width >= 16384, [&](int64_t row) {
        const T* gate = a.gate + row * a.gate_row;
        each_vector(a.out + row * a.width, a.x + row * a.width, a.width, [&](vec x, int64_t d) {
            const vec g = load_part(gate + d, a.width - d);
            return x * (a.kind == 0 ? sigmoid(g) : a.kind == 1 ? silu(g) : gelu_tanh(g));
        });
    });
}

}  // namespace

SPLITFUSE_NORM(gated_rms_norm, GatedRmsNorm)
SPLITFUSE_OP(gate_mul, GateMul)
