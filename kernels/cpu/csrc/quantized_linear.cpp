// Weight-only int8 and int4 matrix products on the CPU: a weight is widened in registers, on its way into the product.
//
// w = scale · u + offset. int8: u in -127..127, a scale per output, no offset. int4: u in 0..15, scale and offset per
// output and group of K. Layout, by the packer in quantized_linear.py: panels of PANEL outputs; in a panel steps of two
// neighbouring k (int8) or four (int4, the second two in the high halves), two bytes per output. The float scales of
// its outputs stand before a panel (int8), scales and offsets before each of its groups (int4).
//
// bfloat16 rows meet the weights as 16-bit integers under a power of two per group of k: exact unless a value is less
// than a 128th of the largest of its group, then off by at most 2^-15 of that. A group's sum is exact. Groups are added
// in order, so that a row's result does not depend on the other rows, to the bit.

#include <memory>

#include "arguments.h"
#include "panels.h"

namespace {

constexpr int STEPS = 4;  // between prefetches
constexpr int STEP_BYTES = 2 * PANEL;
constexpr int MAX_GROUP = 256;  // of k that share an exponent; 2^31 allows 512

inline float from_bits(uint32_t bits) {
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

// How rows and weights of a group meet: as floats anywhere.
struct Floats {
    typedef float element;
    typedef sums_t sums;
    struct lanes {
        sums_t even, odd;
    };

    template <typename T>
    static float put(const T* x, int64_t count, element* to, float* scale) {
        float sum = 0;
        for (int64_t k = 0; k < count; k++) sum += to[k] = to_float(x[k]);
        *scale = 1;
        return sum;
    }
    // Of two bytes per lane the low value and the high; with 4 bits those of one half.
    template <int BITS>
    static lanes widen(const uint8_t* from, int half) {
        typedef int16_t words __attribute__((vector_size(2 * WIDTH)));
        words both;
        std::memcpy(&both, from, sizeof both);
        words low = BITS == 8 ? (both << 8) >> 8 : (both >> 4 * half) & 15;
        words high = BITS == 8 ? both >> 8 : (both >> (8 + 4 * half)) & 15;
        return {__builtin_convertvector(low, sums_t), __builtin_convertvector(high, sums_t)};
    }
    static sums multiply_add(sums sum, const lanes& w, const element* x) { return sum + w.even * x[0] + w.odd * x[1]; }
    static sums_t to_floats(sums sum) { return sum; }
};

#ifdef __AVX512VNNI__
// As 16-bit integers: 32 products an instruction, as many as with bfloat16.
struct Integers {
    typedef int16_t element;
    typedef ivec sums;
    typedef __m512i lanes;

    static float put(const bf16* x, int64_t count, element* to, float* scale) {
        uint16_t most = 0;
        for (int64_t k = 0; k < count; k++) {
            uint16_t size = x[k].bits & 0x7fff;
            most = size > most ? size : most;
        }
        uint32_t exponent = most >> 7 < 16 ? 16 : most >> 7;
        float up = from_bits((268 - exponent) << 23);  // the largest comes to 2^14..2^15
        int32_t sum = 0;
        for (int64_t k = 0; k < count; k++) {
            int32_t value = int32_t(__builtin_rintf(to_float(x[k]) * up));
            sum += to[k] = int16_t(value);
        }
        *scale = from_bits(exponent == 255 ? 0x7fc00000 : (exponent - 14) << 23);  // NaN where not all is finite
        return float(sum) * *scale;
    }
    template <int BITS>
    static lanes widen(const uint8_t* from, int half) {
        __m256i both = _mm256_loadu_si256((const __m256i*)from);
        if (BITS == 8) return _mm512_cvtepi8_epi16(both);
        __m512i wide = _mm512_cvtepu8_epi16(both);
        return half ? _mm512_srli_epi16(wide, 4) : _mm512_and_si512(wide, _mm512_set1_epi16(15));
    }
    static sums multiply_add(sums sum, lanes w, const element* x) {
        int32_t both;
        std::memcpy(&both, x, sizeof both);
        return (sums)_mm512_dpwssd_epi32((__m512i)sum, w, _mm512_set1_epi32(both));
    }
    static sums_t to_floats(sums sum) { return __builtin_convertvector(sum, sums_t); }
};
#endif

template <typename T>
struct Kind {
    typedef Floats type;
};
#ifdef __AVX512VNNI__
template <>
struct Kind<bf16> {
    typedef Integers type;
};
#endif

template <typename T, int BITS>
struct Quantized {
    typedef typename Kind<T>::type Meet;
    typedef typename Meet::element element;
    static constexpr int LINES = STEPS * STEP_BYTES / 64, PER_STEP = BITS == 8 ? 2 : 4;
    static constexpr int64_t HEADER = (BITS == 8 ? 1 : 2) * PANEL * sizeof(float);  // of a panel or a group
    const uint8_t* data;
    const T* bias;  // [N] or null
    T* out;         // [T][N]
    int64_t num_outputs, num_inputs, group;
    std::unique_ptr<element[]> x = {};              // [T][K]
    std::unique_ptr<float[]> x_scales = {}, x_sums = {};  // [T][groups]

    int64_t num_groups() const { return (num_inputs + group - 1) / group; }
    int64_t num_points() const { return num_inputs / PER_STEP / STEPS; }
    int64_t panel_bytes() const {
        return num_inputs / PER_STEP * STEP_BYTES + HEADER * (BITS == 8 ? 1 : num_groups());
    }
    const uint8_t* panel(int64_t number) const { return data + number * panel_bytes(); }

    void put(const T* from, int64_t num_rows, int num_threads) {
        const int64_t groups = num_groups();
        x.reset(new element[num_rows * num_inputs]);
        x_scales.reset(new float[num_rows * groups]);
        x_sums.reset(new float[num_rows * groups]);
#pragma omp parallel for num_threads(num_rows < 32 ? 1 : num_threads) schedule(static)
        for (int64_t i = 0; i < num_rows * groups; i++) {
            int64_t k = i % groups * group, at = i / groups * num_inputs + k;
            x_sums[i] = Meet::put(from + at, num_inputs - k < group ? num_inputs - k : group, x.get() + at, &x_scales[i]);
        }
    }

    // M rows from `row` against P panels from `number`.
    template <int M, int P>
    void multiply(int64_t row, int64_t number, Prefetch ahead) const {
        const int64_t groups = num_groups(), stride = panel_bytes();
        const uint8_t* w = panel(number) + (BITS == 8 ? HEADER : 0);
        sums_t totals[M][P * V] = {};
        for (int64_t i = 0; i < groups; i++) {
            const int64_t k = i * group, steps = (num_inputs - k < group ? num_inputs - k : group) / PER_STEP;
            const uint8_t* header = w;
            if (BITS == 4) w += HEADER;
            typename Meet::sums sums[M][P * V] = {};
            add<M, P>(w, stride, x.get() + row * num_inputs + k, steps, ahead, sums);
            w += steps * STEP_BYTES;
            for (int v = 0; v < P * V; v++) {
                const float* of = (const float*)(header + v / V * stride) + v % V * WIDTH;
                for (int m = 0; m < M; m++) {
                    const int64_t at = (row + m) * groups + i;
                    sums_t sum = Meet::to_floats(sums[m][v]) * x_scales[at];
                    if (BITS == 8) totals[m][v] += sum;
                    else totals[m][v] = sum * at_width(of) + (at_width(of + PANEL) * x_sums[at] + totals[m][v]);
                }
            }
        }
        finish<M, P>(row, number, totals);
    }

   private:
    static sums_t at_width(const float* from) {
        sums_t out;
        std::memcpy(&out, from, sizeof out);
        return out;
    }

    // sums[m][v] over the steps of one group.
    template <int M, int P>
    __attribute__((always_inline)) inline void add(const uint8_t* w, int64_t stride, const element* rows, int64_t steps,
                                                   Prefetch& ahead, typename Meet::sums sums[M][P * V]) const {
        auto step = [&](int64_t k) __attribute__((always_inline)) {
            for (int half = 0; half < PER_STEP / 2; half++) {
                typename Meet::lanes lanes[P * V];
                for (int v = 0; v < P * V; v++)
                    lanes[v] = Meet::template widen<BITS>(w + v / V * stride + k * STEP_BYTES + v % V * WIDTH * 2, half);
                for (int m = 0; m < M; m++)
                    for (int v = 0; v < P * V; v++)
                        sums[m][v] = Meet::multiply_add(sums[m][v], lanes[v], rows + m * num_inputs + k * PER_STEP + 2 * half);
            }
        };
        int64_t k = 0;
        for (; k + STEPS <= steps; k += STEPS) {
            ahead.fetch();  // with one row too: 4 bits 3.79 -> 2.98 ms for all of a 221 M Llama's
            for (int i = 0; i < STEPS; i++) step(k + i);
        }
        for (; k < steps; k++) step(k);
    }

    template <int M, int P>
    void finish(int64_t row, int64_t number, sums_t totals[M][P * V]) const {
        for (int p = 0; p < P; p++) {
            const float* scales = (const float*)panel(number + p);
            for (int m = 0; m < M; m++) {
                for (int v = 0; BITS == 8 && v < V; v++) totals[m][p * V + v] *= at_width(scales + v * WIDTH);
                write(out, bias, num_outputs, row + m, (number + p) * PANEL, (const float*)(totals[m] + p * V));
            }
        }
    }
};

template <typename T, int BITS>
void multiply(const QuantizedLinear<T>& a) {
    Quantized<T, BITS> w{a.data, a.bias, a.out, a.num_outputs, a.num_inputs, a.group < MAX_GROUP ? a.group : MAX_GROUP};
    w.put(a.x, a.num_rows, a.num_threads);
    multiply_panels(w, a.num_rows, a.num_threads);
}

template <typename T>
void multiply(const QuantizedLinear<T>& a) {
    if (a.bits == 8) multiply<T, 8>(a);
    else multiply<T, 4>(a);
}

}  // namespace

extern "C" void quantized_linear_float32(const QuantizedLinear<float>& a) { multiply(a); }
extern "C" void quantized_linear_bfloat16(const QuantizedLinear<bf16>& a) { multiply(a); }
