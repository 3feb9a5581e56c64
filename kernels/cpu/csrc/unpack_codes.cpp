// Values of quantized blocks, from fields of bits to a byte each: read once, written once (twice with upper bits).

#include "arguments.h"

namespace {

struct Bits {
    const uint8_t* bytes;
    int64_t num_bytes, width, run;
    int shift;
    uint8_t middle;
};

// RUN: the run's bytes, or 0 for any number: a loop of known length becomes a few instructions.
template <int WIDTH, int RUN, bool IS_UPPER>
void unpack_runs(const Bits& a, uint8_t* codes) {
    constexpr uint8_t MASK = (1 << WIDTH) - 1;
    const int64_t run = RUN ? RUN : a.run;
    for (int64_t begin = 0; begin < a.num_bytes; begin += run)
        for (int at = 0; at < 8; at += WIDTH, codes += run)
            for (int64_t i = 0; i < run; i++) {
                const uint8_t field = (a.bytes[begin + i] >> at & MASK) << a.shift;
                codes[i] = (IS_UPPER ? codes[i] | field : field) - a.middle;
            }
}

template <int WIDTH, bool IS_UPPER>
void unpack_fields(const Bits& a, uint8_t* codes) {
    switch (a.run) {
        case 16: return unpack_runs<WIDTH, 16, IS_UPPER>(a, codes);
        case 32: return unpack_runs<WIDTH, 32, IS_UPPER>(a, codes);
        case 64: return unpack_runs<WIDTH, 64, IS_UPPER>(a, codes);
        default: return unpack_runs<WIDTH, 0, IS_UPPER>(a, codes);
    }
}

template <bool IS_UPPER>
void unpack(const Bits& a, uint8_t* codes) {
    switch (a.width) {
        case 4: return unpack_fields<4, IS_UPPER>(a, codes);
        case 2: return unpack_fields<2, IS_UPPER>(a, codes);
        default: return unpack_fields<1, IS_UPPER>(a, codes);
    }
}

}  // namespace

extern "C" void unpack_codes(const UnpackCodes& a, const Team*) {
    const uint8_t* block = a.blocks;
    uint8_t* codes = a.codes;
    const uint8_t middle = uint8_t(a.middle), lower = a.upper_bytes ? 0 : middle;
    for (int64_t n = 0; n < a.num_blocks; n++, block += a.block_bytes, codes += a.num_values) {
        unpack<false>({block + a.begin, a.num_bytes, a.width, a.run, 0, lower}, codes);
        if (!a.upper_bytes) continue;
        const uint8_t* upper = block + a.upper_begin;
        unpack<true>({upper, a.upper_bytes, a.upper_width, a.upper_run, int(a.width), middle}, codes);
    }
}
