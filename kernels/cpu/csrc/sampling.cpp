// Ops of sampling on rows of logits on the CPU.

#include <algorithm>

#include "arguments.h"

namespace {

// ln x for normal x > 0, relative error below 2e-7: x = m·2^k with m in [sqrt(1/2), sqrt(2)), a polynomial in m - 1.
inline vec log_positive(vec x) {
    ivec bits = (ivec)x - 0x3f3504f3;
    vec k = convert<vec>(bits >> 23);
    vec f = (vec)((bits & 0x007fffff) + 0x3f3504f3) - 1.0f;
    vec z = f * f;
    vec p = splat(7.0376836292e-2f);
    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    p = p * f * z;  // a statement of its own, because the compiler fuses the first product
    p = p + k * -2.12194440e-4f;
    p = p - 0.5f * z;
    return f + p + k * 0.693359375f;
}

inline uvec scramble(uvec h) {
    h = (h ^ (h >> 16)) * 0x85ebca6bu;
    h = (h ^ (h >> 13)) * 0xc2b2ae35u;
    return h ^ (h >> 16);
}

inline uvec lane_ids() {
    uint32_t lanes[LANES];
    for (int i = 0; i < LANES; i++) lanes[i] = i;
    return load_vector<uvec>(lanes);
}

inline bool any(ivec mask) {
    int64_t words[sizeof mask / sizeof(int64_t)], found = 0;
    store_vector(words, mask);
    for (int64_t word : words) found |= word;
    return found;
}

// Uniform numbers above 0 and up to 1, hashed from (key, token id).
inline vec uniforms(uvec id, uint64_t key) {
    uvec h = scramble(scramble(id ^ (uint32_t)key) + (uint32_t)(key >> 32));
    return (convert<vec>(h) + 0.5f) * 0x1p-32f;
}

// Gumbel noise -log(-log(1 - v)).
inline vec gumbel(vec v) {
    vec w = 1.0f - v;
    // -log(1 - v), exact for small v: log(w)·v / (1 - w), and v itself where w rounds to 1. v = 1 gives infinity.
    ivec is_one = w == splat(1.0f), is_zero = w <= splat(0.0f);
    vec denominator = (vec)((is_one & (ivec)splat(1.0f)) | (~is_one & (ivec)(1.0f - w)));
    vec safe = (vec)((is_zero & (ivec)splat(1.0f)) | (~is_zero & (ivec)w));
    vec e = -log_positive(safe) * v / denominator;
    e = (vec)((is_one & (ivec)v) | (~is_one & (ivec)e));
    e = (vec)((is_zero & (ivec)splat(1e30f)) | (~is_zero & (ivec)e));
    return -log_positive(e);
}

// At least gumbel(v), and seldom much more: -log(1 - v) >= v, and a float's bits interpolate log2 v from below.
inline vec most_gumbel(vec v) {
    return convert<vec>(0x3f800000 - (ivec)v) * (0.69314718f * 0x1p-23f) + 0.01f;
}

// Token with the largest logit + Gumbel noise, which is hashed from (key, token id): see reference.gumbel_argmax.
// Both logarithms are left out for tokens that cannot win, nearly all: 255 rows of 49,152 take 4.7 ms, with them 17.8.
int64_t gumbel_argmax_row(const float* logits, int64_t vocab, uint64_t key) {
    constexpr int64_t GROUP = 4;  // vectors
    vec best = splat(-INFINITY);
    ivec winner = {};
    const uvec lane = lane_ids();
    for (int64_t at = 0; at < vocab; at += GROUP * LANES) {
        float rest[GROUP * LANES];
        const float* some = logits + at;
        if (vocab - at < GROUP * LANES) {
            std::fill_n(rest, GROUP * LANES, -INFINITY);
            std::memcpy(rest, some, (vocab - at) * sizeof(float));
            some = rest;
        }
        vec v[GROUP];
        ivec may_win = {};
        for (int64_t i = 0; i < GROUP; i++) {
            v[i] = uniforms(lane + (uint32_t)(at + i * LANES), key);
            may_win |= load(some + i * LANES) + most_gumbel(v[i]) > best;
        }
        if (!any(may_win)) continue;
        for (int64_t i = 0; i < GROUP; i++) {
            vec score = load(some + i * LANES) + gumbel(v[i]);
            ivec better = score > best;
            best = (vec)((better & (ivec)score) | (~better & (ivec)best));
            winner = (better & (ivec)(lane + (uint32_t)(at + i * LANES))) | (~better & winner);
        }
    }
    int64_t token = 0;
    float top = -INFINITY;
    for (int i = 0; i < LANES; i++)
        if (best[i] > top || (best[i] == top && winner[i] < token)) top = best[i], token = winner[i];
    return token;
}

// Number of threads that pay for sampling, at most one a row.
template <typename Arguments>
int64_t row_threads(const Arguments& a) {
    if (a.num_rows * a.vocab < 16384) return 1;
    return a.num_rows < a.num_threads ? a.num_rows : a.num_threads;
}

// Largest of some logits, in independent vectors; NaN counts as the largest.
template <typename T>
float largest_of(const T* logits, int64_t count) {
    vec best[4];
    for (vec& each : best) each = splat(-INFINITY);
    int64_t at = 0;
    for (; at + 4 * LANES <= count; at += 4 * LANES)
        for (int i = 0; i < 4; i++) {
            const vec next = load(logits + at + i * LANES);
            best[i] = where((best[i] > next) | (ivec)(best[i] != best[i]), best[i], next);
        }
    float top = -INFINITY;
    auto take = [&](float logit) { top = top != top || top > logit ? top : logit; };
    for (const vec& each : best)
        for (int i = 0; i < LANES; i++) take(each[i]);
    for (; at < count; at++) take(to_float(logits[at]));
    return top;
}

// Goes block by block, so that only the best block is searched for the position.
template <typename T>
void max_logits_row(const MaxLogits<T>& a, int64_t row) {
    constexpr int64_t BLOCK = 1024;
    const T* logits = a.logits + row * a.vocab;
    float top = -INFINITY;
    int64_t token = 0;
    for (int64_t at = 0; at < a.vocab; at += BLOCK) {
        const float here = largest_of(logits + at, a.vocab - at < BLOCK ? a.vocab - at : BLOCK);
        if (top == top && !(here <= top)) top = here, token = at;
    }
    const bool is_finite = top - top == 0;
    while (is_finite && to_float(logits[token]) != top) token++;
    a.largest[row] = top, a.tokens[row] = is_finite ? token : -1;
}

template <typename T>
void max_logits(const MaxLogits<T>& a, const Team* team) {
    together(team, row_threads(a),
             [&](const Team& team) { team.each(a.num_rows, [&](int64_t row) { max_logits_row(a, row); }); });
}

}  // namespace

SPLITFUSE_OP(max_logits, MaxLogits)

extern "C" void gumbel_argmax(const GumbelArgmax& a, const Team* team) {
    together(team, row_threads(a), [&](const Team& team) {
        team.each(a.num_rows, [&](int64_t row) {
            a.tokens[row] = gumbel_argmax_row(a.logits + row * a.vocab, a.vocab, a.keys[row]);
        });
    });
}

extern "C" void softcap(const Softcap& a, const Team* team) {
    each_item(a, team, (a.count + LANES - 1) / LANES, a.count >= 32768, [&](int64_t i) {
        const int64_t at = i * LANES, left = a.count - at;
        store_part(a.out + at, softcap(load_part(a.x + at, left), a.cap), left);
    });
}
