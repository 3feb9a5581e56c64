// Conversion of a quantized weight's values from rows to the panels of quantized.h: a value is read and written once.

#include <algorithm>
#include <cstring>

#include "arguments.h"
#include "panels.h"
#include "transpose.h"

namespace {

constexpr int LINE_QUADS = 16;  // 64 bytes of a row

// Stores the quads of a block of 64 inputs, [quad][output], in a panel.
void keep(const QuantizedValues& a, const uint32_t (*quads)[PANEL], int num_quads, uint32_t* values, uint32_t* high) {
    if (a.bits == 8) {
        std::memcpy(values, quads, num_quads * sizeof *quads);
        return;
    }
    // Stores `step` bits of each value, from `shift` on.
    const auto keep_bits = [&](int shift, int step, uint32_t* all) {
        const int together = 8 / step;  // quads that share a byte
        const uint32_t mask = ((1u << step) - 1) * 0x01010101u;
        for (int q = 0; q < num_quads; q++)
            for (int o = 0; o < PANEL; o++) {
                const uint32_t some = (quads[q][o] >> shift & mask) << step * (q % together);
                uint32_t& to = all[q / together * PANEL + o];
                to = q % together ? to | some : some;
            }
    };
    const int low = a.bits < 4 ? 2 : 4;
    keep_bits(0, low, values);
    if (high) keep_bits(low, int(a.bits) - low, high);
}

void lay_out(const QuantizedValues& a) {
    const int64_t low = a.bits == 8 ? 8 : a.bits < 4 ? 2 : 4;
    const uint32_t flip = a.zero * 0x01010101u, mask = ((1u << a.bits) - 1) * 0x01010101u;
    for (int64_t first = 0; first < a.num_outputs; first += PANEL) {
        const int64_t num_rows = std::min<int64_t>(PANEL, a.num_outputs - first);
        for (int64_t k = 0; k < a.num_padded; k += 4 * LINE_QUADS) {
            uint32_t rows[PANEL][LINE_QUADS] = {}, quads[LINE_QUADS][PANEL];
            const int64_t num_bytes = std::min<int64_t>(sizeof rows[0], a.num_inputs - k);
            for (int64_t row = 0; row < num_rows; row++)
                std::memcpy(rows[row], a.codes + (first + row) * a.num_inputs + k, num_bytes);
            transpose(rows[0], PANEL, LINE_QUADS, quads[0]);
            for (auto& quad : quads)
                for (uint32_t& values : quad) values = (values ^ flip) & mask;  // value + zero, modulo 2^bits
            const int64_t quad = (first * a.num_padded + k * PANEL) / 4;  // the block's first, in dwords of 8 bits
            keep(a, quads, int(std::min<int64_t>(LINE_QUADS, (a.num_padded - k) / 4)),
                 a.values + quad * low / 8, a.high ? a.high + quad * (a.bits - low) / 8 : nullptr);
        }
    }
}

}  // namespace

extern "C" void quantized_values(const QuantizedValues& a, const Team*) { lay_out(a); }
