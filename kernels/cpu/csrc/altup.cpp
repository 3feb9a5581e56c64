// Ops of Gemma 3n: four streams that are updated in turn (Baykal et al. 2023, AltUp), in float, rounded once.

#include "arguments.h"

namespace {

template <typename T>
float mean_square(const T* x, int64_t width) {
    vec squares = {};
    for (int64_t d = 0; d < width; d += LANES) {
        const vec v = load_part(x + d, width - d);
        squares += v * v;
    }
    return sum(squares) / width;
}

template <typename T>
void match_rms(const MatchRms<T>& a, const Team* team) {
    each_item(a, team, a.num_rows, a.num_rows * a.width >= 16384, [&](int64_t row) {
        const T* x = a.x + row * a.width;
        const float own = std::fmax(mean_square(x, a.width), 1e-5f);
        const float scale = std::sqrt(mean_square(a.like + row * a.width, a.width)) / std::sqrt(own);
        each_vector(a.out + row * a.width, x, a.width, [&](vec v, int64_t) { return v * scale; });
    });
}

template <typename T>
void altup_predict(const AltupPredict<T>& a, const Team* team) {
    const T* x[] = {a.x0, a.x1, a.x2, a.x3};
    T* out[] = {a.out0, a.out1, a.out2, a.out3};
    each_item(a, team, a.num_rows, a.num_rows * a.width >= 16384, [&](int64_t row) {
        const T* coefs = a.coefs + row * 16;
        for (int64_t d = 0; d < a.width; d += LANES) {
            const int64_t at = row * a.width + d, left = a.width - d;
            vec stream[4];
            for (int64_t b = 0; b < 4; b++) {
                stream[b] = load_part(x[b] + at, left);
                if (b > 0 && a.added) stream[b] += load_part(a.added + at, left);
            }
            for (int64_t b = 0; b < 4; b++) {
                vec mixed = stream[0] * splat(to_float(coefs[4 * b]));
                for (int64_t i = 1; i < 4; i++) mixed = fma(stream[i], splat(to_float(coefs[4 * b + i])), mixed);
                store_part(out[b] + at, stream[b] + mixed, left);
            }
        }
    });
}

template <typename T>
void altup_correct(const AltupCorrect<T>& a, const Team* team) {
    const T* x[] = {a.x0, a.x1, a.x2, a.x3};
    T* out[] = {a.out0, a.out1, a.out2, a.out3};
    each_item(a, team, a.num_rows, a.num_rows * a.width >= 16384, [&](int64_t row) {
        for (int64_t d = 0; d < a.width; d += LANES) {
            const int64_t at = row * a.width + d, left = a.width - d;
            const vec news = load_part(a.activated + at, left) - load_part(x[0] + at, left);
            for (int64_t b = 0; b < 4; b++) {
                const vec factor = splat(to_float(a.coefs[4 * row + b]) + 1.0f);
                store_part(out[b] + at, fma(news, factor, load_part(x[b] + at, left)), left);
            }
        }
    });
}

}  // namespace

SPLITFUSE_OP(match_rms, MatchRms)
SPLITFUSE_OP(altup_predict, AltupPredict)
SPLITFUSE_OP(altup_correct, AltupCorrect)
