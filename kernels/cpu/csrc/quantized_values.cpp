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
    for (int q = 0; q < num_quads; q += 2)
        for (int o = 0; o < PANEL; o++)
            values[q / 2 * PANEL + o] = (quads[q][o] & 0x0f0f0f0f) | (quads[q + 1][o] & 0x0f0f0f0f) << 4;
    if (!high) return;
    const int step = a.bits - 4, together = 8 / step;  // upper bits of a value, quads that share a byte
    for (int q = 0; q < num_quads; q++)
        for (int o = 0; o < PANEL; o++) {
            const uint32_t upper = (quads[q][o] >> 4 & 0x03030303) << step * (q % together);
            uint32_t& to = high[q / together * PANEL + o];
            to = q % together ? to | upper : upper;
        }
}

void lay_out(const QuantizedValues& a) {
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
                 a.values + (a.bits == 8 ? quad : quad / 2), a.high ? a.high + quad * (a.bits - 4) / 8 : nullptr);
        }
    }
}

}  // namespace

extern "C" void quantized_values(const QuantizedValues& a, const Team*) { lay_out(a); }
