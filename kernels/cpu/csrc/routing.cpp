// Small ops of mixtures of experts: the choice of a token's experts, the order of their work, the sum of their results.

#include "arguments.h"
#include "scratch.h"

namespace {

// scores [experts], padded to whole vectors: softmax(logits) or their sigmoids.
template <typename T>
void score(const Route<T>& a, const T* logits, float* scores) {
    const int64_t num = a.num_experts;
    if (a.is_sigmoid) {
        for (int64_t e = 0; e < num; e += LANES) store(scores + e, sigmoid(load_part(logits + e, num - e)));
        return;
    }
    float largest = to_float(logits[0]), total = 0;
    for (int64_t e = 1; e < num; e++) largest = largest < to_float(logits[e]) ? to_float(logits[e]) : largest;
    for (int64_t e = 0; e < num; e += LANES) {
        const vec x = load_part(logits + e, num - e);
        store(scores + e, where(x == x, exp_nonpositive(x - splat(largest)), x));  // NaN stays NaN
    }
    for (int64_t e = 0; e < num; e++) total += scores[e];
    for (int64_t e = 0; e < num; e += LANES) store(scores + e, load(scores + e) / splat(total));
}

// Returns the index of the largest value, the first among equals, and sets it to -inf.
int64_t take_largest(float* values, int64_t num) {
    int64_t best = 0;
    for (int64_t i = 1; i < num; i++)
        if (values[i] > values[best]) best = i;
    values[best] = -INFINITY;
    return best;
}

// Sets the choice of experts outside the best groups to -inf. A group counts its best two, or one.
template <typename T>
void keep_groups(const Route<T>& a, float* choice, float* spare) {
    const int64_t size = a.num_experts / a.num_groups;
    float *sums = spare, *group = spare + a.num_groups;
    for (int64_t g = 0; g < a.num_groups; g++) {
        std::memcpy(group, choice + g * size, size * sizeof(float));
        sums[g] = choice[g * size + take_largest(group, size)];
        if (a.num_group_scores > 1) sums[g] += choice[g * size + take_largest(group, size)];
    }
    for (int64_t i = 0; i < a.num_kept_groups; i++) take_largest(sums, a.num_groups);
    for (int64_t g = 0; g < a.num_groups; g++)
        if (sums[g] != -INFINITY)
            for (int64_t e = 0; e < size; e++) choice[g * size + e] = -INFINITY;
}

// Chooses like SparseMixer: each choice has a softmax of its own over logits near the largest of those that are left.
template <typename T>
void mix_sparsely(const Route<T>& a, int64_t t) {
    const int64_t num = a.num_experts, padded = (num + LANES - 1) / LANES * LANES;
    const T* logits = a.logits + t * num;
    float *left = (float*)scratch(2 * padded * sizeof(float)), *near = left + padded;
    for (int64_t e = 0; e < num; e++) left[e] = to_float(logits[e]);
    for (int64_t k = 0; k < a.top_k; k++) {
        int64_t best = 0;
        for (int64_t e = 1; e < num; e++)
            if (left[e] > left[best]) best = e;
        const float largest = left[best];
        for (int64_t e = 0; e < num; e++) {
            const float x = to_float(logits[e]), magnitude = std::fabs(x) < largest ? largest : std::fabs(x);
            near[e] = (largest - x) / magnitude > 2 * a.jitter ? -INFINITY : left[e] - largest;
        }
        float total = 0;
        for (int64_t e = 0; e < num; e += LANES) {
            const vec x = load_part(near + e, num - e);
            store(near + e, where(x == x, exp_nonpositive(x), x));  // NaN stays NaN
        }
        for (int64_t e = 0; e < num; e++) total += near[e];
        a.ids[t * a.top_k + k] = int32_t(best);
        a.weights[t * a.top_k + k] = near[best] / total * a.scale;
        left[best] = -INFINITY;
    }
}

template <typename T>
void route_token(const Route<T>& a, int64_t t) {
    if (a.jitter > 0) return mix_sparsely(a, t);
    const int64_t num = a.num_experts, padded = (num + LANES - 1) / LANES * LANES;
    float *scores = (float*)scratch(4 * padded * sizeof(float)), *choice = scores + padded;
    score(a, a.logits + t * num, scores);
    for (int64_t e = 0; e < num; e++) {
        const float value = a.bias ? scores[e] + a.bias[e] : scores[e];
        choice[e] = value == value ? value : INFINITY;  // NaN is chosen, so that it is seen
    }
    if (a.num_groups > 1) keep_groups(a, choice, choice + padded);
    float total = 0, *weights = a.weights + t * a.top_k;
    for (int64_t k = 0; k < a.top_k; k++) {
        const int64_t best = take_largest(choice, num);
        a.ids[t * a.top_k + k] = int32_t(best);
        total += weights[k] = scores[best];
    }
    const float divisor = a.is_renormalized ? total + 1e-20f : 1.0f;
    for (int64_t k = 0; k < a.top_k; k++) weights[k] = weights[k] / divisor * a.scale;
}

template <typename T>
void route(const Route<T>& a, const Team* team) {
    each_item(a, team, a.num_tokens, a.num_tokens * a.num_experts >= 16384, [&](int64_t t) { route_token(a, t); });
}

template <typename T>
void order_groups(const OrderGroups<T>& a, const Team* team) {
    together(team, a.num_rows * a.width >= 32768 ? a.num_threads : 1, [&](const Team& team) {
        for (int64_t group = 0; group < a.num_groups; group++) {
            const int64_t *order = a.orders + group * a.width, first = a.starts[group];
            team.each(a.starts[group + 1] - first, [&](int64_t row) {
                const int64_t at = (first + row) * a.width;
                for (int64_t k = 0; k < a.width; k++) a.out[at + k] = a.x[at + order[k]];
            });
        }
    });
}

template <typename T>
void weigh_pairs(const WeighPairs<T>& a, const Team* team) {
    each_item(a, team, a.num_tokens, a.num_tokens * a.top_k * a.width >= 32768, [&](int64_t t) {
        const auto weight = [&](int64_t k) { return splat(a.weights ? a.weights[t * a.top_k + k] : 1.0f); };
        const int64_t* places = a.places + t * a.top_k;
        each_vector(a.out + t * a.width, a.x + places[0] * a.width, a.width, [&](vec x, int64_t d) {
            vec total = x * weight(0);
            for (int64_t k = 1; k < a.top_k; k++)
                total = fma(load_part(a.x + places[k] * a.width + d, a.width - d), weight(k), total);
            return total;
        });
    });
}

template <typename T>
void scatter_weighed(const ScatterWeighed<T>& a, const Team* team) {
    const int64_t num_pairs = a.num_tokens * a.top_k;
    each_item(a, team, num_pairs, num_pairs * a.width >= 32768, [&](int64_t pair) {
        const vec weight = splat(a.weights[pair]);
        const T* x = a.x + pair / a.top_k * a.width;
        each_vector(a.out + a.places[pair] * a.width, x, a.width, [&](vec v, int64_t) { return v * weight; });
    });
}

template <typename T>
void add_gated(const AddGated<T>& a, const Team* team) {
    each_item(a, team, a.num_rows, a.num_rows * a.width >= 32768, [&](int64_t row) {
        T gate;
        store_one(&gate, sigmoid(splat(to_float(a.gate[row])))[0]);
        const T* y = a.y + row * a.width;
        each_vector(a.out + row * a.width, a.x + row * a.width, a.width, [&](vec x, int64_t d) {
            return fma(load_part(y + d, a.width - d), splat(to_float(gate)), x);
        });
    });
}

}  // namespace

extern "C" void sort_pairs(const SortPairs& a, const Team* team) {
    if (team && team->thread) return;
    const int64_t num_pairs = a.num_tokens * a.top_k;
    int64_t* starts = a.starts;
    std::memset(starts, 0, (a.num_experts + 1) * sizeof *starts);
    for (int64_t pair = 0; pair < num_pairs; pair++) starts[a.ids[pair] + 1]++;
    for (int64_t e = 0; e < a.num_experts; e++) starts[e + 1] += starts[e];
    for (int64_t pair = 0; pair < num_pairs; pair++) {
        a.places[pair] = starts[a.ids[pair]]++;  // afterwards each expert's start is the next one's
        a.tokens[a.places[pair]] = pair / a.top_k;
    }
    for (int64_t e = a.num_experts; e > 0; e--) starts[e] = starts[e - 1];
    starts[0] = 0;
}

SPLITFUSE_OP(route, Route)
SPLITFUSE_OP(order_groups, OrderGroups)
SPLITFUSE_OP(scatter_weighed, ScatterWeighed)
SPLITFUSE_OP(weigh_pairs, WeighPairs)
SPLITFUSE_OP(add_gated, AddGated)
