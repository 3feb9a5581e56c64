// Wide: LANES numbers in several registers. A compiler's own vector that is wider than a register is kept in memory and
// compared lane by lane (g++ 12): attention_decode.cpp for AVX2 took 6 to 8 times as long to compile as for AVX-512.
#pragma once

template <typename Number>
struct Wide {
#ifdef __AVX2__
    static constexpr int BYTES = 32;
#else
    static constexpr int BYTES = 16;
#endif
    static constexpr int WIDTH = BYTES / sizeof(Number), PARTS = LANES / WIDTH;
    typedef Number Part __attribute__((vector_size(BYTES), aligned(alignof(Number))));
    Part parts[PARTS];

    Wide() = default;
    SPLITFUSE_INLINE Wide(Number x) {
        for (int p = 0; p < PARTS; p++) parts[p] = x - Part{};  // -0 stays
    }
    // The same bits.
    template <typename Other>
    SPLITFUSE_INLINE explicit Wide(const Wide<Other>& x) {
        for (int p = 0; p < PARTS; p++) parts[p] = (Part)x.parts[p];
    }
    SPLITFUSE_INLINE Number operator[](int lane) const { return parts[lane / WIDTH][lane % WIDTH]; }
    SPLITFUSE_INLINE Wide operator-() const { return each(*this, [](Part x) { return -x; }); }
    SPLITFUSE_INLINE Wide operator~() const { return each(*this, [](Part x) { return ~x; }); }

    template <typename Function>
    static SPLITFUSE_INLINE Wide each(Wide x, Function f) {
        for (int p = 0; p < PARTS; p++) x.parts[p] = f(x.parts[p]);
        return x;
    }
#define SPLITFUSE_OPERATOR(sign)                                             \
    friend SPLITFUSE_INLINE Wide operator sign(Wide a, const Wide& b) {      \
        for (int p = 0; p < PARTS; p++) a.parts[p] = a.parts[p] sign b.parts[p]; \
        return a;                                                            \
    }                                                                        \
    SPLITFUSE_INLINE Wide& operator sign##=(const Wide& b) { return *this = *this sign b; }
    SPLITFUSE_OPERATOR(+)
    SPLITFUSE_OPERATOR(-)
    SPLITFUSE_OPERATOR(*)
    SPLITFUSE_OPERATOR(/)
    SPLITFUSE_OPERATOR(&)
    SPLITFUSE_OPERATOR(|)
    SPLITFUSE_OPERATOR(^)
    SPLITFUSE_OPERATOR(<<)
    SPLITFUSE_OPERATOR(>>)
#undef SPLITFUSE_OPERATOR
#define SPLITFUSE_COMPARISON(sign)                                                       \
    friend SPLITFUSE_INLINE Wide<int32_t> operator sign(const Wide& a, const Wide& b) {  \
        Wide<int32_t> out;                                                               \
        for (int p = 0; p < PARTS; p++) out.parts[p] = a.parts[p] sign b.parts[p];       \
        return out;                                                                      \
    }
    SPLITFUSE_COMPARISON(<)
    SPLITFUSE_COMPARISON(>)
    SPLITFUSE_COMPARISON(<=)
    SPLITFUSE_COMPARISON(==)
    SPLITFUSE_COMPARISON(!=)
#undef SPLITFUSE_COMPARISON
};
