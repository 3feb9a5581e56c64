// Products with quantized weights on the CPU, and rows of them: a panel is taken apart into this thread's memory and
// meets all rows there.
//
// Rows keep their 16 or 32 bits and meet weights rounded to bfloat16, in tiles or pairs, or not rounded where neither
// is to be had; or they are rounded to int8, input_group inputs at a time, and meet the values themselves. On one
// processor a row goes one way and its sums are taken in one order whatever the number of rows, so that its result does
// not depend on the other rows, to the bit.

#include "arguments.h"
#include "dense_panels.h"
#include "int8_panels.h"
#include "padded_rows.h"
#include "quantized.h"
#include "tiles.h"

namespace {

// Rows [begin, end) against `count` panels, at most MOST_PANELS, in passes of about the same size, of at most MANY rows.
template <int MANY, int MOST_PANELS, typename Panels>
void multiply_passes(const Panels& panels, int64_t number, int64_t count, int64_t begin, int64_t end) {
    const int64_t passes = (end - begin + MANY - 1) / MANY;
    for (int64_t pass = 0; pass < passes; pass++) {
        const int num_rows = int((end - begin) / (passes - pass));
        if (count == MOST_PANELS && num_rows <= FEW) multiply_rows<MOST_PANELS, FEW>(num_rows, panels, begin, number, {});
        else
            for (int64_t i = 0; i < count; i++) multiply_rows<1, MANY>(num_rows, panels, begin, number + i, {});
        begin += num_rows;
    }
}

template <typename Scalar, typename Element, typename T>
void multiply_dense(const QuantizedLinear<T>& a, const QuantizedPanels& w, const Team& team) {
    const Element* rows = padded_rows<Element>(a.x, a.num_rows, a.num_inputs, w.num_inputs, team);
    const int64_t steps = w.num_inputs * sizeof(Element) / sizeof(Scalar);
    walk(a.num_outputs, a.num_rows, a.num_rows <= FEW ? SIDE : 1, team,
         [&](int64_t number, int64_t count, int64_t begin, int64_t end) {
             Scalar* data = (Scalar*)scratch(count * steps * PANEL * sizeof(Scalar));
             for (int64_t i = 0; i < count; i++) w.take(number + i, 0, w.num_inputs, data + i * steps * PANEL);
             DensePanels<Scalar, T> panels{
                 data, (const Scalar*)rows, a.bias, a.out, a.num_outputs, a.out_row, steps, number};
             multiply_passes<MOST, SIDE>(panels, number, count, begin, end);
         });
}

template <int BITS, typename T>
void multiply_stored(const QuantizedPanels& w, int64_t num_rows, const Int8Sums<T>& sums, const Team& team) {
    const StoredInt8Panels<T, BITS> panels{sums, w};
    walk(sums.num_outputs, num_rows, num_rows <= FEW ? SIDE : 1, team,
         [&](int64_t number, int64_t count, int64_t begin, int64_t end) {
             multiply_passes<Int8Sums<T>::MANY, SIDE>(panels, number, count, begin, end);
         });
}

template <typename T>
void multiply_int8(const QuantizedLinear<T>& a, const QuantizedPanels& w, const Team& team) {
    const Int8Rows rows(a.x, a.num_rows, a.num_inputs, w.num_inputs, a.input_group, team);
    const Int8Sums<T> sums{rows, a.bias, a.out, a.num_outputs, a.out_row, w.zero, a.offsets != nullptr};
    if (a.num_rows <= Int8Sums<T>::MANY) {
        if (w.bits == 8) return multiply_stored<8>(w, a.num_rows, sums, team);
        if (w.bits == 6) return multiply_stored<6>(w, a.num_rows, sums, team);
        if (w.bits == 5) return multiply_stored<5>(w, a.num_rows, sums, team);
        return multiply_stored<4>(w, a.num_rows, sums, team);
    }
    const int64_t quads = w.num_inputs / 4 * PANEL, headers = rows.num_groups * 2 * PANEL;
    walk(a.num_outputs, a.num_rows, 1, team, [&](int64_t number, int64_t, int64_t begin, int64_t end) {
        float* to = (float*)scratch((quads + headers) * 4);
        for (int64_t group = 0; group < rows.num_groups; group++) {
            const Header header = w.header(number, group * a.input_group / w.group);
            std::memcpy(to + group * 2 * PANEL, &header, sizeof header);
        }
        const Int8Panel<T> panel{sums, to, w.quads(number, (uint32_t*)to + headers)};
        multiply_passes<Int8Sums<T>::MANY, 1>(panel, number, 1, begin, end);
    });
}

template <typename T>
void multiply(const QuantizedLinear<T>& a, const Team& team) {
    const QuantizedPanels w(a);
    if (a.input_group) return multiply_int8(a, w, team);
    if constexpr (std::is_same<T, bf16>::value) {
#ifdef SPLITFUSE_AMX
        if (amx::is_allowed()) return multiply_tiles(w, a, team);
#endif
#ifdef __AVX512BF16__
        return multiply_dense<pair, bf16>(a, w, team);
#endif
    }
    multiply_dense<float, float>(a, w, team);
}

template <typename T>
void multiply(const QuantizedLinear<T>& a, const Team* team) {
    together(team, threads_for(a.num_rows * a.num_outputs * a.num_inputs, a.num_threads),
             [&](const Team& team) { multiply(a, team); });
}

template <typename T>
void embed(const QuantizedEmbedding<T>& a, const Team* team) {
    const QuantizedPanels w(a);
    together(team, threads_for(a.num_rows * a.num_inputs * PANEL, a.num_threads), [&](const Team& team) {
        team.each(a.num_rows, [&](int64_t row) {
            float* panel = (float*)scratch(w.num_inputs * PANEL * 4);
            w.take(a.ids[row] / PANEL, 0, w.num_inputs, panel);
            for (int64_t k = 0; k < a.num_inputs; k++)
                store_one(a.out + row * a.num_inputs + k, panel[k * PANEL + a.ids[row] % PANEL]);
        });
    });
}

}  // namespace

extern "C" {

void quantized_linear_float32(const QuantizedLinear<float>& a, const Team* team) { multiply(a, team); }
void quantized_linear_bfloat16(const QuantizedLinear<bf16>& a, const Team* team) { multiply(a, team); }
void quantized_embedding_float32(const QuantizedEmbedding<float>& a, const Team* team) { embed(a, team); }
void quantized_embedding_bfloat16(const QuantizedEmbedding<bf16>& a, const Team* team) { embed(a, team); }

}
