// Products of bfloat16 rows with panels of pairs by the processor's tiles (amx.h).
#pragma once

#include "amx.h"
#include "padded_rows.h"

#ifdef SPLITFUSE_AMX
// Inputs of a panel that are taken at a time: with few rows while the tiles work on those before, with many 16 KB, which
// stay in the first-level cache while all rows meet them.
constexpr int64_t FEW_INPUTS = 64, MANY_INPUTS = 256;

// `w` has num_inputs, a multiple of BLOCK, and `pairs(number, begin, end, memory)`: inputs [begin, end) of a panel,
// perhaps in that memory.
template <typename Weight, typename Arguments>
void multiply_tiles(const Weight& w, const Arguments& a, const Team& team) {
    const bf16* rows = padded_rows<bf16>(a.x, a.num_rows, a.num_inputs, w.num_inputs, team);
    walk(a.num_outputs, a.num_rows, 1, team, [&](int64_t number, int64_t, int64_t begin, int64_t end) {
        const bool is_many = end - begin > amx::MOST;  // else the sums stay in their tiles
        const int64_t num_inputs = w.num_inputs, chunk = is_many ? MANY_INPUTS : FEW_INPUTS;
        uint32_t* memory = (uint32_t*)scratch((chunk / 2 + end - begin) * PANEL * 4);
        float* sums = (float*)memory + chunk / 2 * PANEL;
        int configured = 0;
        for (int64_t k = 0; k < num_inputs; k += chunk) {
            const int64_t stop = k + chunk < num_inputs ? k + chunk : num_inputs;
            const uint32_t* panel = w.pairs(number, k, stop, memory);
            for (int64_t row = begin; row < end; row += amx::MOST) {
                const int num_rows = int(end - row < amx::MOST ? end - row : amx::MOST);
                float* here = sums + (row - begin) * PANEL;
                if (num_rows != configured) amx::configure(configured = num_rows);
                if (k == 0) amx::zero();
                else if (is_many) amx::load(here);
                amx::add(rows + row * num_inputs + k, num_inputs, panel, stop - k);
                if (is_many || stop == num_inputs) amx::store(here);
            }
        }
        _tile_release();
        for (int64_t row = begin; row < end; row++)
            write(a.out + row * a.out_row, a.bias, a.num_outputs, number * PANEL, sums + (row - begin) * PANEL);
    });
}
#endif
