// Products with quantized weights on the CPU, and rows of them: a panel is taken apart into this thread's memory and
// meets all rows there.
//
// Rows keep their 16 or 32 bits and meet weights rounded to bfloat16, in tiles or pairs, or not rounded where neither
// is to be had; or they are rounded to int8, input_group inputs at a time, and meet the values themselves. On one
// processor a row goes one way and its sums are taken in one order whatever the number of rows, so that its result does
// not depend on the other rows, to the bit.

#include "amx.h"
#include "arguments.h"
#include "dense_panels.h"
#include "int8_panels.h"
#include "quantized.h"
#include "scratch.h"

namespace {

// The rows as Scalars are made of, with zeros behind them up to the weight's number of inputs.
template <typename To, typename T>
class PaddedRows {
   public:
    PaddedRows(const QuantizedLinear<T>& a, int64_t padded, int num_threads) {
        if constexpr (std::is_same<To, T>::value)
            if (padded == a.num_inputs) {
                data = a.x;
                return;
            }
        owned.reset(new To[a.num_rows * padded]);
        data = owned.get();
#pragma omp parallel for num_threads(num_threads) schedule(static)
        for (int64_t row = 0; row < a.num_rows; row++)
            for (int64_t k = 0; k < padded; k++)
                store_one(&owned[row * padded + k], k < a.num_inputs ? to_float(a.x[row * a.num_inputs + k]) : 0.0f);
    }
    const To* data;

   private:
    std::unique_ptr<To[]> owned;
};

// product(number, count, begin, end) for each `side` neighbouring panels, `count` of them, and rows [begin, end): all of
// them, or parts where the panels are too few for the threads.
template <typename Product>
void walk(int64_t num_outputs, int64_t num_rows, int64_t side, int num_threads, Product product) {
    const int64_t num_panels = (num_outputs + PANEL - 1) / PANEL, groups = (num_panels + side - 1) / side;
    int64_t parts = (4 * num_threads + groups - 1) / groups;
    if (parts > num_rows / ROWS) parts = num_rows / ROWS;
    if (parts < 1 || num_threads == 1) parts = 1;
    const int64_t size = ((num_rows + parts - 1) / parts + BLOCK - 1) / BLOCK * BLOCK;
#pragma omp parallel for num_threads(num_threads) schedule(static)
    for (int64_t item = 0; item < groups * parts; item++) {
        const int64_t number = item / parts * side, begin = item % parts * size;
        const int64_t end = begin + size < num_rows ? begin + size : num_rows;
        if (begin < end) product(number, number + side <= num_panels ? side : num_panels - number, begin, end);
    }
}

// Rows [begin, end) against `count` panels in passes of about the same size, of at most MANY rows.
template <int MANY, typename Panels>
void multiply_passes(const Panels& panels, int64_t number, int64_t count, int64_t begin, int64_t end) {
    const int64_t passes = (end - begin + MANY - 1) / MANY;
    for (int64_t pass = 0; pass < passes; pass++) {
        const int num_rows = int((end - begin) / (passes - pass));
        if (count == SIDE && num_rows <= FEW) multiply_rows<SIDE, FEW>(num_rows, panels, begin, number, {});
        else
            for (int64_t i = 0; i < count; i++) multiply_rows<1, MANY>(num_rows, panels, begin, number + i, {});
        begin += num_rows;
    }
}

template <typename Scalar, typename Element, typename T>
void multiply_dense(const QuantizedLinear<T>& a, const QuantizedPanels& w, int num_threads) {
    const PaddedRows<Element, T> rows(a, w.num_inputs, num_threads);
    const int64_t steps = w.num_inputs * sizeof(Element) / sizeof(Scalar);
    walk(a.num_outputs, a.num_rows, a.num_rows <= FEW ? SIDE : 1, num_threads,
         [&](int64_t number, int64_t count, int64_t begin, int64_t end) {
             Scalar* data = (Scalar*)scratch(count * steps * PANEL * sizeof(Scalar));
             for (int64_t i = 0; i < count; i++) w.take(number + i, 0, w.num_inputs, data + i * steps * PANEL);
             DensePanels<Scalar, T> panels{
                 data, (const Scalar*)rows.data, a.bias, a.out, a.num_outputs, steps, number};
             multiply_passes<MOST>(panels, number, count, begin, end);
         });
}

#ifdef SPLITFUSE_AMX
// Inputs that are taken apart at a time: with few rows while the tiles work on those before, with many 16 KB, which stay
// in the first-level cache while all rows meet them.
constexpr int64_t FEW_INPUTS = 64, MANY_INPUTS = 256;

void multiply_tiles(const QuantizedLinear<bf16>& a, const QuantizedPanels& w, int num_threads) {
    const PaddedRows<bf16, bf16> rows(a, w.num_inputs, num_threads);
    walk(a.num_outputs, a.num_rows, 1, num_threads, [&](int64_t number, int64_t, int64_t begin, int64_t end) {
        const bool is_many = end - begin > amx::MOST;  // else the sums stay in their tiles
        const int64_t num_inputs = w.num_inputs, chunk = is_many ? MANY_INPUTS : FEW_INPUTS;
        uint32_t* panel = (uint32_t*)scratch((chunk / 2 + end - begin) * PANEL * 4);
        float* sums = (float*)panel + chunk / 2 * PANEL;
        int configured = 0;
        for (int64_t k = 0; k < num_inputs; k += chunk) {
            const int64_t stop = k + chunk < num_inputs ? k + chunk : num_inputs;
            w.take(number, k, stop, panel);
            for (int64_t row = begin; row < end; row += amx::MOST) {
                const int num_rows = int(end - row < amx::MOST ? end - row : amx::MOST);
                float* here = sums + (row - begin) * PANEL;
                if (num_rows != configured) amx::configure(configured = num_rows);
                if (k == 0) amx::zero();
                else if (is_many) amx::load(here);
                amx::add(rows.data + row * num_inputs + k, num_inputs, panel, stop - k);
                if (is_many || stop == num_inputs) amx::store(here);
            }
        }
        _tile_release();
        for (int64_t row = begin; row < end; row++)
            write(a.out + row * a.num_outputs, a.bias, a.num_outputs, number * PANEL, sums + (row - begin) * PANEL);
    });
}
#endif

template <typename T>
void multiply_int8(const QuantizedLinear<T>& a, const QuantizedPanels& w, int num_threads) {
    const Int8Rows rows(a.x, a.num_rows, a.num_inputs, w.num_inputs, a.input_group, num_threads);
    const int64_t quads = w.num_inputs / 4 * PANEL, headers = rows.num_groups * 2 * PANEL;
    walk(a.num_outputs, a.num_rows, a.num_rows <= FEW ? SIDE : 1, num_threads,
         [&](int64_t number, int64_t count, int64_t begin, int64_t end) {
             float* to = (float*)scratch(count * (quads + headers) * 4);
             Int8Panels<T> panels{rows, to, {}, a.bias, a.out, a.num_outputs, number, w.zero, a.offsets != nullptr};
             for (int64_t i = 0; i < count; i++) {
                 panels.quads[i] = w.quads(number + i, (uint32_t*)to + count * headers + i * quads);
                 for (int64_t group = 0; group < rows.num_groups; group++) {
                     const Header header = w.header(number + i, group * a.input_group / w.group);
                     std::memcpy(to + i * headers + group * 2 * PANEL, &header, sizeof header);
                 }
             }
             multiply_passes<Int8Panels<T>::MANY>(panels, number, count, begin, end);
         });
}

template <typename T>
void multiply(const QuantizedLinear<T>& a) {
    const QuantizedPanels w(a);
    const int num_threads = threads_for(a.num_rows * a.num_outputs * a.num_inputs, a.num_threads);
    if (a.input_group) return multiply_int8(a, w, num_threads);
    if constexpr (std::is_same<T, bf16>::value) {
#ifdef SPLITFUSE_AMX
        if (amx::is_allowed()) return multiply_tiles(a, w, num_threads);
#endif
#ifdef __AVX512BF16__
        return multiply_dense<pair, bf16>(a, w, num_threads);
#endif
    }
    multiply_dense<float, float>(a, w, num_threads);
}

template <typename T>
void embed(const QuantizedEmbedding<T>& a) {
    const QuantizedPanels w(a);
    const int num_threads = threads_for(a.num_rows * a.num_inputs * PANEL, a.num_threads);
#pragma omp parallel for num_threads(num_threads) schedule(static)
    for (int64_t row = 0; row < a.num_rows; row++) {
        float* panel = (float*)scratch(w.num_inputs * PANEL * 4);
        w.take(a.ids[row] / PANEL, 0, w.num_inputs, panel);
        for (int64_t k = 0; k < a.num_inputs; k++)
            store_one(a.out + row * a.num_inputs + k, panel[k * PANEL + a.ids[row] % PANEL]);
    }
}

}  // namespace

extern "C" void quantized_linear_float32(const QuantizedLinear<float>& a) { multiply(a); }
extern "C" void quantized_linear_bfloat16(const QuantizedLinear<bf16>& a) { multiply(a); }
extern "C" void quantized_embedding_float32(const QuantizedEmbedding<float>& a) { embed(a); }
extern "C" void quantized_embedding_bfloat16(const QuantizedEmbedding<bf16>& a) { embed(a); }
