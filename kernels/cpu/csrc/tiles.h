// Products of bfloat16 rows with panels of pairs by the processor's tiles (amx.h).
#pragma once

#include "amx.h"
#include "padded_rows.h"

#ifdef SPLITFUSE_AMX
// Most inputs of a panel that are unpacked at a time: with few rows while the tiles multiply the previous ones, with
// many rows 24 KB, which stay in the first-level cache while all rows use them.
constexpr int64_t FEW_INPUTS = 64, MANY_INPUTS = 384;
// Bytes of rows that are multiplied by all panels before the next rows, so that they stay in the second-level cache
// (2,048 rows, one thread: 330 -> 465 GFLOP/s).
constexpr int64_t MANY_BYTES = 1 << 19;

// Multiplies rows [begin, end) of `rows` by panel `number` of the weight.
template <typename Weight, typename Arguments>
void multiply_tiles(const Weight& w, const Arguments& a, const bf16* rows, int64_t number, int64_t begin, int64_t end) {
    const bool is_many = end - begin > amx::MOST;  // else the sums stay in their tiles
    const int64_t num_inputs = w.num_inputs, most = is_many ? MANY_INPUTS : FEW_INPUTS;
    const int64_t num_chunks = (num_inputs + most - 1) / most;
    const int64_t chunk = (num_inputs / num_chunks + BLOCK - 1) / BLOCK * BLOCK;
    uint32_t* memory = (uint32_t*)scratch((chunk / 2 + end - begin) * PANEL * 4);
    float* sums = (float*)memory + chunk / 2 * PANEL;
    int configured = 0;
    for (int64_t k = 0; k < num_inputs; k += chunk) {
        const int64_t stop = k + chunk < num_inputs ? k + chunk : num_inputs;
        const uint32_t* panel = w.pairs(number, k, stop, memory);
        for (int64_t row = begin; row < end; row += amx::MOST) {
            const int num_rows = int(end - row < amx::MOST ? end - row : amx::MOST);
            float* here = sums + (row - begin) * PANEL;
            // Prefetch the rows' lines of the output: without it, their writes took half of the time (465 -> 650).
            if (k == 0)
                for (int i = 0; i < num_rows; i++) __builtin_prefetch(a.out + (row + i) * a.out_row + number * PANEL, 1, 1);
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
}

// `w` has num_inputs, a multiple of BLOCK, and `pairs(number, begin, end, memory)`, which returns inputs [begin, end)
// of a panel, perhaps in that memory.
template <typename Weight, typename Arguments>
void multiply_tiles(const Weight& w, const Arguments& a, const Team& team) {
    const bf16* rows = padded_rows<bf16>(a.x, a.num_rows, a.num_inputs, w.num_inputs, team);
    const int64_t fitting = MANY_BYTES / 2 / w.num_inputs / BLOCK * BLOCK, size = fitting > BLOCK ? fitting : BLOCK;
    for (int64_t first = 0; first < a.num_rows; first += size) {
        const int64_t num_rows = a.num_rows - first < size ? a.num_rows - first : size;
        const Work work(a.num_outputs, num_rows, team);
        team.each(work.count, [&](int64_t item) {
            work.of(item, [&](int64_t number, int64_t begin, int64_t end) {
                multiply_tiles(w, a, rows, number, first + begin, first + end);
            });
        });
    }
}
#endif
