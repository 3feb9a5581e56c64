// Weight-only int8 and int4 matrix products on the CPU: a panel of weights is widened once and meets all rows of x.
//
// w = scale · u + offset. int8: u in -127..127, a scale per output, no offset. int4: u in 0..15, scale and offset per
// output and group of K. Layout, by the packer in cpu_quantized.py: panels of PANEL outputs; in a panel, per pair of
// neighbouring k (int8) or two such pairs (int4, the second in the high halves), 32 bytes per 16 outputs.
// int4 as bfloat16 is free: 0x4300 | u is 128 + u, and the 128 goes into the offset.

#include <vector>

#include "cpu_product.h"

namespace {

constexpr int V = 4, PANEL = V * LANES;
constexpr int CHUNK = 128;   // k of a widened panel: 16 KB as bfloat16
constexpr int ROWS = 96;     // rows of x that share a widened panel

struct Quantized {
    const uint8_t* data;
    const float *scales, *offsets;  // [num_groups][padded N]
    int64_t bits, num_outputs, num_inputs, group;
    int64_t padded() const { return (num_outputs + PANEL - 1) / PANEL * PANEL; }
    int64_t panel_bytes() const { return PANEL * num_inputs * bits / 8; }
};

template <typename T>
class Panel {
    typedef typename Operand<T>::Scalar Scalar;
    typedef typename Operand<T>::Vector Vector;
    static constexpr int PACK = Operand<T>::PACK;

   public:
    // Widen `count` values of k from `begin` of a panel.
    void widen(const Quantized& w, const uint8_t* panel, int64_t begin, int64_t count) {
        const int64_t per_step = w.bits == 8 ? 2 : 4;
        const uint8_t* from = panel + begin / per_step * V * 32;
        for (int64_t k = 0; k < count; k += per_step)
            for (int v = 0; v < V; v++, from += 32) w.bits == 8 ? put(k, v, from) : put_halves(k, v, from);
    }

    // sums[m][v] over the chunk for M rows of x.
    template <int M>
    void multiply(const Scalar* x, int64_t x_row, int64_t count, vec sums[M][V]) const {
        product<M, V, Scalar>([&](int m) { return x + m * x_row; }, 1, lanes, count / PACK, sums);
    }

   private:
    Vector lanes[CHUNK / PACK * V];

#ifdef __AVX512BF16__
    static constexpr bool PAIRS = PACK == 2;
#else
    static constexpr bool PAIRS = false;
#endif

    void put(int64_t k, int v, const uint8_t* from) {
#ifdef __AVX512BF16__
        if constexpr (PAIRS) {
            __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
            __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(from + 16))));
            lanes[k / 2 * V + v] = (uvec)_mm512_cvtne2ps_pbh(high, low);
            return;
        }
#endif
        for (int i = 0; i < LANES; i++)
            for (int p = 0; p < 2; p++) ((float*)(lanes + (k + p) * V + v))[i] = (int8_t)from[2 * i + p];
    }

    void put_halves(int64_t k, int v, const uint8_t* from) {
#ifdef __AVX512BF16__
        if constexpr (PAIRS) {
            __m512i wide = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)from));
            __m512i base = _mm512_set1_epi16(0x4300);
            lanes[k / 2 * V + v] = (uvec)_mm512_ternarylogic_epi64(wide, _mm512_set1_epi16(15), base, 0xEA);  // (a & b) | c
            lanes[(k / 2 + 1) * V + v] = (uvec)_mm512_or_si512(_mm512_srli_epi16(wide, 4), base);
            return;
        }
#endif
        for (int i = 0; i < LANES; i++)
            for (int p = 0; p < 2; p++) {
                ((float*)(lanes + (k + p) * V + v))[i] = 128.0f + (from[2 * i + p] & 15);
                ((float*)(lanes + (k + 2 + p) * V + v))[i] = 128.0f + (from[2 * i + p] >> 4);
            }
    }
};

// Rows [begin, begin + count) of x against one panel; `sums` is [count][PANEL] floats.
template <typename T>
struct Work {
    typedef typename Operand<T>::Scalar Scalar;
    const Quantized& w;
    const Scalar* x;  // [T][K / PACK]
    const float* x_sums;  // [T][num_groups]: of each group of k; only for int4
    int64_t x_row;
    static constexpr int PACK = Operand<T>::PACK;

    void run(Panel<T>& panel, int64_t number, int64_t begin, int64_t count, float* sums) const {
        const uint8_t* data = w.data + number * w.panel_bytes();
        std::memset(sums, 0, count * PANEL * sizeof(float));
        const int64_t chunk = w.bits == 4 && w.group < CHUNK ? w.group : CHUNK;
        for (int64_t k = 0; k < w.num_inputs; k += chunk) {
            int64_t size = w.num_inputs - k < chunk ? w.num_inputs - k : chunk;
            panel.widen(w, data, k, size);
            int64_t group = w.bits == 4 ? k / w.group : 0;
            int64_t at = group * w.padded() + number * PANEL;
            int64_t row = 0;
            for (; row + 6 <= count; row += 6) add<6>(panel, begin, row, k, size, group, at, sums);
            switch (count - row) {
                case 1: add<1>(panel, begin, row, k, size, group, at, sums); break;
                case 2: add<2>(panel, begin, row, k, size, group, at, sums); break;
                case 3: add<3>(panel, begin, row, k, size, group, at, sums); break;
                case 4: add<4>(panel, begin, row, k, size, group, at, sums); break;
                case 5: add<5>(panel, begin, row, k, size, group, at, sums); break;
            }
        }
    }

    template <int M>
    void add(const Panel<T>& panel, int64_t begin, int64_t row, int64_t k, int64_t size, int64_t group, int64_t at, float* sums) const {
        vec found[M][V] = {};
        panel.template multiply<M>(x + (begin + row) * x_row + k / PACK, x_row, size, found);
        int64_t num_groups = w.num_inputs / w.group;
        for (int m = 0; m < M; m++)
            for (int v = 0; v < V; v++) {
                vec total = found[m][v] * load(w.scales + at + v * LANES);
                if (w.bits == 4 && k % w.group == 0)  // once per group
                    total += load(w.offsets + at + v * LANES) * x_sums[(begin + row + m) * num_groups + group];
                float* to = sums + (row + m) * PANEL + v * LANES;
                store(to, load(to) + total);
            }
    }
};

template <typename T>
void multiply(const Quantized& w, const T* x, const T* bias, T* out, int64_t num_rows, int num_threads) {
    typedef typename Operand<T>::Scalar Scalar;
    constexpr int PACK = Operand<T>::PACK;
    const int64_t num_groups = w.num_inputs / w.group, num_panels = w.padded() / PANEL;
    std::vector<float> x_sums(w.bits == 4 ? num_rows * num_groups : 0);
    if (w.bits == 4)
        for (int64_t i = 0; i < num_rows * num_groups; i++) {
            const T* from = x + i * w.group;
            vec total = {};
            for (int64_t k = 0; k < w.group; k += LANES) total += load(from + k);
            x_sums[i] = sum(total);
        }
    std::vector<float> widened;
    const Scalar* operand = (const Scalar*)x;
    if constexpr (PACK == 1 && sizeof(T) == 2) {
        widened.resize(num_rows * w.num_inputs);
        for (size_t i = 0; i < widened.size(); i++) widened[i] = to_float(x[i]);
        operand = (const Scalar*)widened.data();
    }
    const Work<T> work{w, operand, x_sums.data(), w.num_inputs / PACK};
    const int64_t num_parts = (num_rows + ROWS - 1) / ROWS;
#pragma omp parallel num_threads(num_threads)
    {
        Panel<T> panel;
        std::vector<float> sums(PANEL * (num_rows < ROWS ? num_rows : ROWS));
#pragma omp for schedule(static)
        for (int64_t item = 0; item < num_panels * num_parts; item++) {
            int64_t number = item / num_parts, begin = item % num_parts * ROWS;
            int64_t count = num_rows - begin < ROWS ? num_rows - begin : ROWS;
            work.run(panel, number, begin, count, sums.data());
            for (int64_t row = 0; row < count; row++) {
                T* to = out + (begin + row) * w.num_outputs + number * PANEL;
                int64_t width = w.num_outputs - number * PANEL < PANEL ? w.num_outputs - number * PANEL : PANEL;
                for (int64_t i = 0; i < width; i++)
                    store_one(to + i, sums[row * PANEL + i] + (bias ? to_float(bias[number * PANEL + i]) : 0.0f));
            }
        }
    }
}

}  // namespace

#define ENTRY_POINT(T, SUFFIX)                                                                                       \
    extern "C" void quantized_linear_##SUFFIX(const void* x, const void* data, const void* scales, const void* offsets, \
                                              const void* bias, void* out, int64_t num_rows, int64_t num_outputs,    \
                                              int64_t num_inputs, int64_t group, int64_t bits, int64_t num_threads) { \
        Quantized w{(const uint8_t*)data, (const float*)scales, (const float*)offsets, bits, num_outputs, num_inputs, group}; \
        multiply<T>(w, (const T*)x, (const T*)bias, (T*)out, num_rows, (int)num_threads);                            \
    }

ENTRY_POINT(float, float32)
ENTRY_POINT(bf16, bfloat16)
