// Products with quantized weights on the CPU, and lookup of their rows: a panel, or a chunk of its inputs, is unpacked
// into the thread's memory and multiplied by all rows there, or by few rows in registers.
//
// With input_bits 8, rows are rounded to int8, input_group inputs at a time, and multiply the integer values; with 0,
// those in bfloat16 if the processor has products of bytes; tiles then multiply many rows. With 16, rows in
// bfloat16 keep their 16 bits and multiply weights rounded to bfloat16 if the processor has tiles. Without tiles, and
// with 15, they are rounded to 15 bits by groups if the processor has products of bytes, or else multiply weights rounded
// to bfloat16 in pairs (float8 always does). Other rows multiply weights as floats. On one processor every row is
// computed in one way and its sums are in one order for any number of rows, so its result does not depend on the other
// rows, to the bit.
//
// quantized_linear_float32.cpp and quantized_linear_bfloat16.cpp are compiled side by side.
#pragma once

#include "arguments.h"
#include "dense_panels.h"
#include "groups.h"
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

// Rows as floats or bfloat16.
template <typename Scalar, typename Element, typename T>
class DenseProduct {
   public:
    DenseProduct(const QuantizedLinear<T>& a, const QuantizedPanels& w, const Team& team)
        : rows(padded_rows<Element>(a.x, a.num_rows, a.num_inputs, w.num_inputs, team)) {}

    // Multiplies rows [begin, end) by a panel. `next`: the panel that the thread reads after this one, or this one.
    void multiply(const QuantizedLinear<T>& a, QuantizedPanels& w, int64_t number, int64_t begin, int64_t end,
                  const uint8_t* next) const {
        const uint8_t* here = w.panel(number);
        if (end - begin <= FEW) {
            w.ahead = next - here;
            return w.by_kind([&](auto kind) {
                const StoredPanels<Scalar, decltype(kind)::value, Element, T> panels{
                    w, rows, a.bias, a.out, a.num_outputs, a.out_row};
                multiply_rows<FEW>(int(end - begin), panels, begin, number);
            });
        }
        const int64_t steps = w.num_inputs * sizeof(Element) / sizeof(Scalar);
        Scalar* data = (Scalar*)scratch(steps * PANEL * sizeof(Scalar));
        w.ahead = 0;
        w.take(number, 0, w.num_inputs, data);
        DensePanels<Scalar, T> panel{data, (const Scalar*)rows, a.bias, a.out, a.num_outputs, a.out_row, steps, number};
        multiply_panel<MOST>(panel, number, begin, end, next, next == here ? 0 : w.num_bytes());
    }

   private:
    const Element* rows;
};

// Rows rounded to integers.
template <typename T, int LEVELS>
class Int8Product {
   public:
    template <typename Count>
    Int8Product(const QuantizedLinear<T>& a, const QuantizedPanels& w, const Team& team, Count num_beside)
        : rows(a.x, a.num_rows, a.num_inputs, w.num_inputs, a.input_group, w.zero, team, num_beside) {}

    // Like DenseProduct's.
    void multiply(const QuantizedLinear<T>& a, QuantizedPanels& w, int64_t number, int64_t begin, int64_t end,
                  const uint8_t* next) const {
        if (HAS_CHUNKS ? rows.in_chunks[begin] : end - begin > StoredInt8Panel<8, LEVELS>::MANY)
            return multiply_unpacked(a, w, number, begin, end, next);
        w.by_kind([&](auto kind) {
            typedef StoredInt8Panel<bits_of(decltype(kind)::value), LEVELS> Panel;
            const bool has_headers = Panel::form(w, rows.group) == Panel::HEADERS;
            const int64_t num_rows = end - begin, num_lines = num_rows + (has_headers ? rows.num_groups * 2 : 0);
            float* totals = (float*)scratch(num_lines * PANEL * sizeof(float));
            float* headers = totals + num_rows * PANEL;
            if (has_headers) w.headers(number, a.input_group, headers);
            std::memset(totals, 0, num_rows * PANEL * sizeof(float));
            const Panel panel{rows, w, number, headers};
            const int64_t passes = (num_rows + Panel::MOST - 1) / Panel::MOST, distance = Panel::distance(num_rows);
            const int64_t size = passes == 1 ? w.num_inputs : std::max(Panel::CHUNK, rows.group);
            for (int64_t k = 0; k < w.num_inputs; k += size) {
                const int64_t behind = std::min(k + size, w.num_inputs);
                for (int64_t pass = 0, row = 0; pass < passes; pass++) {
                    const int num = int((num_rows - row) / (passes - pass));
                    panel.template multiply_some<Panel::MOST>(num, begin + row, k, behind, {distance, passes, pass},
                                                              totals + row * PANEL);
                    row += num;
                }
            }
            for (int64_t row = 0; row < num_rows; row++)
                write(a.out + (begin + row) * a.out_row, a.bias, a.num_outputs, number * PANEL, totals + row * PANEL);
        });
    }

   private:
    // Not inlined, because gcc 12 would make the other products slower (AVX-VNNI: 5 %).
    __attribute__((noinline)) void multiply_unpacked(const QuantizedLinear<T>& a, QuantizedPanels& w, int64_t number,
                                                     int64_t begin, int64_t end,
                                                     [[maybe_unused]] const uint8_t* next) const {
        const int64_t headers = rows.num_groups * 2 * PANEL;
#ifdef __AVX512VNNI__
        const int64_t num_rows = end - begin;
        constexpr int64_t CHUNK = Int8Rows<LEVELS>::CHUNK, SIZE = CHUNK * LEVELS / 4 * PANEL;
        uint32_t* values = (uint32_t*)scratch((SIZE + headers + num_rows * PANEL) * 4);
        float *of_groups = (float*)values + SIZE, *totals = of_groups + headers;
        w.headers(number, a.input_group, of_groups);
        std::memset(totals, 0, num_rows * PANEL * 4);
        for (int64_t k = 0; k < w.num_inputs; k += CHUNK) {
            const int64_t behind = k + CHUNK < w.num_inputs ? k + CHUNK : w.num_inputs;
            w.template take_integers<LEVELS>(number, k, behind, values);
            rows.with_step([&](auto step) {
                const ChunkPanel<LEVELS, decltype(step)::value> panel{
                    behind - k, rows.group, a.offsets != nullptr, rows.group > CHUNK && behind < w.num_inputs,
                    of_groups + k / rows.group * 2 * PANEL, values};
                const auto* first = rows.template chunk<decltype(step)::value>(k) + begin;
                panel.multiply(first, num_rows, totals, [&](int64_t row, int64_t num) {
                    for (const int64_t last = row + num; behind == w.num_inputs && row < last; row++)
                        write(a.out + (begin + row) * a.out_row, a.bias, a.num_outputs, number * PANEL,
                              totals + row * PANEL);
                });
            });
        }
#else
        const int64_t quads = w.num_inputs / 4 * PANEL;
        const Int8Sums<T, LEVELS> sums{rows, a.bias, a.out, a.num_outputs, a.out_row, w.zero, a.offsets != nullptr};
        float* to = (float*)scratch((quads + headers) * 4);
        w.headers(number, a.input_group, to);
        w.ahead = 0;
        const Int8Panel<T, LEVELS> panel{sums, to, w.quads(number, (uint32_t*)to + headers)};
        const int64_t num_bytes = next == w.panel(number) ? 0 : w.num_bytes();
        multiply_panel<Int8Sums<T, LEVELS>::MANY>(panel, number, begin, end, next, num_bytes);
#endif
    }

    Int8Rows<LEVELS> rows;
};

// Prepares all rows of `a` for products without tiles, and calls f(product). `num_beside`: see Int8Rows.
template <typename T, typename Count, typename Function>
void with_product(const QuantizedLinear<T>& a, const QuantizedPanels& w, const Team& team, Count num_beside,
                  Function f) {
    if (a.input_bits == 8) return f(Int8Product<T, 1>(a, w, team, num_beside));
    if constexpr (std::is_same<T, bf16>::value) {
        if (HAS_DOT && a.input_bits == 0) return f(Int8Product<T, 1>(a, w, team, num_beside));
        if (HAS_DOT && !a.is_float8) return f(Int8Product<T, 2>(a, w, team, num_beside));
#ifdef __AVX512BF16__
        return f(DenseProduct<pair, bf16, T>(a, w, team));
#endif
    }
    f(DenseProduct<float, float, T>(a, w, team));
}

template <typename T>
bool takes_tiles([[maybe_unused]] const QuantizedLinear<T>& a) {
#ifdef SPLITFUSE_AMX
    return std::is_same<T, bf16>::value && (a.is_float8 || a.input_bits == 16) && amx::is_allowed();
#else
    return false;
#endif
}

template <typename T>
void multiply(const QuantizedLinear<T>& a, const Team& team) {
    QuantizedPanels w(a);
#ifdef SPLITFUSE_AMX
    if constexpr (std::is_same<T, bf16>::value)
        if (takes_tiles(a)) return multiply_tiles(w, a, team);
#endif
    with_product(a, w, team, [&](int64_t) { return a.num_rows; }, [&](const auto& product) {
        walk(a.num_outputs, a.num_rows, team, [&](int64_t number, int64_t begin, int64_t end, int64_t next) {
            product.multiply(a, w, number, begin, end, w.panel(next));
        });
    });
}

template <typename T>
void multiply(const QuantizedLinear<T>& a, const Team* team) {
    together(team, threads_for(a.num_rows * a.num_outputs * a.num_inputs, a.num_threads),
             [&](const Team& team) { multiply(a, team); });
}

template <typename T>
void multiply_groups(const GroupedQuantizedLinear<T>& a, const Team& team) {
    const Groups<QuantizedLinear<T>, GroupedQuantizedLinear<T>> groups(a);
    const QuantizedLinear<T> any = groups.any();
#ifdef SPLITFUSE_AMX
    if constexpr (std::is_same<T, bf16>::value)
        if (takes_tiles(any)) {
            const bf16* rows = padded_rows<bf16>(any.x, any.num_rows, any.num_inputs, QuantizedPanels(any).num_inputs, team);
            return groups.walk(team, [&](const QuantizedLinear<T>& weight, int64_t number, int64_t begin, int64_t end, auto) {
                multiply_tiles(QuantizedPanels(weight), weight, rows, number, begin, end);
            });
        }
#endif
    const auto num_beside = [&](int64_t row) { return groups.num_beside(row); };
    with_product(any, QuantizedPanels(any), team, num_beside, [&](const auto& product) {
        groups.walk(team, [&](const QuantizedLinear<T>& weight, int64_t number, int64_t begin, int64_t end, auto next) {
            QuantizedPanels w(weight);
            product.multiply(weight, w, number, begin, end, QuantizedPanels(next.weight).panel(next.number));
        });
    });
}

template <typename T>
void multiply_groups(const GroupedQuantizedLinear<T>& a, const Team* team) {
    together(team, threads_for(a.num_rows * a.num_outputs * a.num_inputs, a.num_threads),
             [&](const Team& team) { multiply_groups(a, team); });
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
