// Products with quantized weights on the CPU, and lookup of their rows: a panel is unpacked into the thread's memory
// and multiplied by all rows there, or by few rows in registers.
//
// With input_bits 8, rows are rounded to int8, input_group inputs at a time, and multiply the integer values. Otherwise
// rows in bfloat16 keep their 16 bits and multiply weights rounded to bfloat16 if the processor has tiles. Without
// tiles they are rounded to 15 bits by groups if the processor has products of bytes, or else multiply weights rounded
// to bfloat16 in pairs (float8 always does). Other rows multiply weights as floats. On one processor every row is
// computed in one way and its sums are in one order for any number of rows, so its result does not depend on the other
// rows, to the bit.

#include "arguments.h"
#include "dense_panels.h"
#include "int8_panels.h"
#include "padded_rows.h"
#include "quantized.h"
#include "tiles.h"

namespace {

constexpr int FEW = 4;  // most rows that use weights from registers: from 6 rows on, every use takes a load anyway

// Stored panels, for few rows. Sums are in DensePanels' order.
template <typename Scalar, Kind KIND, typename Element, typename T>
struct StoredPanels {
    const QuantizedPanels& w;
    const Element* x;
    const T* bias;
    T* out;
    int64_t num_outputs, out_row;

    // Not inlined, because gcc 12 would spill its registers (4 rows in 4 bits: 25 % slower).
    template <int M>
    __attribute__((noinline)) void multiply(int64_t row, int64_t number, Prefetch) const {
        const Element* rows = x + row * w.num_inputs;
        sums_t sums[M][V] = {};
        w.template each<Scalar, KIND>(number, 0, w.num_inputs, [&](int v, int64_t k, auto lanes) __attribute__((always_inline)) {
            for (int m = 0; m < M; m++) {
                Scalar here;
                std::memcpy(&here, rows + m * w.num_inputs + k, sizeof here);
                sums[m][v] = multiply_add(sums[m][v], lanes, here);
            }
        });
        for (int m = 0; m < M; m++)
            write(out + (row + m) * out_row, bias, num_outputs, number * PANEL, (const float*)sums[m]);
    }
};

template <typename Scalar, typename Element, typename T>
void multiply_dense(const QuantizedLinear<T>& a, QuantizedPanels& w, const Team& team) {
    const Element* rows = padded_rows<Element>(a.x, a.num_rows, a.num_inputs, w.num_inputs, team);
    if (a.num_rows <= FEW)
        return w.by_kind([&](auto kind) {
            const StoredPanels<Scalar, decltype(kind)::value, Element, T> panels{
                w, rows, a.bias, a.out, a.num_outputs, a.out_row};
            walk(a.num_outputs, a.num_rows, team, [&](int64_t number, int64_t begin, int64_t end, int64_t next) {
                w.ahead = (next - number) * w.num_bytes();
                multiply_rows<FEW>(int(end - begin), panels, begin, number);
            });
        });
    const int64_t steps = w.num_inputs * sizeof(Element) / sizeof(Scalar);
    walk(a.num_outputs, a.num_rows, team, [&](int64_t number, int64_t begin, int64_t end, int64_t next) {
        Scalar* data = (Scalar*)scratch(steps * PANEL * sizeof(Scalar));
        w.take(number, 0, w.num_inputs, data);
        DensePanels<Scalar, T> panel{data, (const Scalar*)rows, a.bias, a.out, a.num_outputs, a.out_row, steps, number};
        multiply_panel<MOST>(panel, number, begin, end, w.panel(next), next == number ? 0 : w.num_bytes());
    });
}

template <int LEVELS, typename T>
void multiply_int8(const QuantizedLinear<T>& a, QuantizedPanels& w, const Team& team) {
    const Int8Rows<LEVELS> rows(a.x, a.num_rows, a.num_inputs, w.num_inputs, a.input_group, team);
    const Int8Sums<T, LEVELS> sums{rows, a.bias, a.out, a.num_outputs, a.out_row, w.zero, a.offsets != nullptr};
    constexpr int MOST_STORED = StoredInt8Panels<T, 8, LEVELS>::MANY;
    if (a.num_rows <= MOST_STORED)
        return w.by_kind([&](auto kind) {
            const StoredInt8Panels<T, bits_of(decltype(kind)::value), LEVELS> panels{sums, w};
            walk(a.num_outputs, a.num_rows, team, [&](int64_t number, int64_t begin, int64_t end, int64_t next) {
                w.ahead = (next - number) * w.num_bytes();
                multiply_rows<MOST_STORED>(int(end - begin), panels, begin, number);
            });
        });
    const int64_t quads = w.num_inputs / 4 * PANEL, headers = rows.num_groups * 2 * PANEL;
    walk(a.num_outputs, a.num_rows, team, [&](int64_t number, int64_t begin, int64_t end, int64_t next) {
        float* to = (float*)scratch((quads + headers) * 4);
        for (int64_t group = 0; group < rows.num_groups; group++) {
            const Header header = w.header(number, group * a.input_group / w.group);
            std::memcpy(to + group * 2 * PANEL, &header, sizeof header);
        }
        const Int8Panel<T, LEVELS> panel{sums, to, w.quads(number, (uint32_t*)to + headers)};
        multiply_panel<Int8Sums<T, LEVELS>::MANY>(
            panel, number, begin, end, w.panel(next), next == number ? 0 : w.num_bytes());
    });
}

template <typename T>
void multiply(const QuantizedLinear<T>& a, const Team& team) {
    QuantizedPanels w(a);
    if (a.input_bits == 8) return multiply_int8<1>(a, w, team);
    if constexpr (std::is_same<T, bf16>::value) {
#ifdef SPLITFUSE_AMX
        if (amx::is_allowed()) return multiply_tiles(w, a, team);
#endif
        if (HAS_DOT && !a.is_float8) return multiply_int8<2>(a, w, team);
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
    QuantizedPanels w(a);
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
