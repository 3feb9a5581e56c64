// Arguments of the ops: one struct per op, whose fields are declared here only. build.py reads this file too, so that
// Python passes fields by name; it knows pointers, int64_t and float. Tensors without a stride are contiguous.
#pragma once

#include "simd.h"
#include "team.h"

// C functions of an op, for values of each type, and of a norm, whose weights may have another type.
#define SPLITFUSE_OP(name, Arguments)                                                                      \
    extern "C" void name##_float32(const Arguments<float>& a, const Team* team) { name(a, team); }         \
    extern "C" void name##_bfloat16(const Arguments<bf16>& a, const Team* team) { name(a, team); }
#define SPLITFUSE_NORM(name, Arguments)                                                                    \
    extern "C" void name##_float32(const Arguments<float, float>& a, const Team* team) { name(a, team); }  \
    extern "C" void name##_bfloat16(const Arguments<bf16, bf16>& a, const Team* team) { name(a, team); }   \
    extern "C" void name##_bfloat16_float32(const Arguments<bf16, float>& a, const Team* team) { name(a, team); }

// T: type of the values, W: of the norms' weights. q, k, v [tokens, heads, D] with the strides q_token, k_token,
// v_token of their tokens; q_norm, k_norm, v_norm [D] or null; caches of T or int8 (paged_cache.h); cos_sin [positions,
// rotary].
template <typename T, typename W>
struct RopeAndCache : Op {
    const T *q, *k, *v;
    const W *q_norm, *k_norm, *v_norm;
    T* out;
    void *k_cache, *v_cache;
    const float* cos_sin;
    const int64_t *positions, *slots;
    int64_t num_tokens, num_heads, num_kv_heads, head_dim, rotary, block_size, q_token, k_token, v_token, is_cache_int8;
    float eps;
};

// RMSNorm of x + residual, which is written to new_residual, or of x if there is no residual.
template <typename T, typename W>
struct AddRmsNorm : Op {
    const T *x, *residual;
    const W* weight;
    T *out, *new_residual;
    int64_t num_tokens, hidden;
    float eps;
};

// Like AddRmsNorm, for LayerNorm; bias may be null.
template <typename T>
struct AddLayerNorm : Op {
    const T *x, *residual, *weight, *bias;
    T *out, *new_residual;
    int64_t num_tokens, hidden;
    float eps;
};

// out [tokens, inner] = activation(gate) · up; `kind` is the activation's number in elementwise.cpp.
template <typename T>
struct Gated : Op {
    const T* gate_up;
    T* out;
    int64_t num_tokens, inner, kind;
    float limit;
};

// Recurrent layers (recurrence.h): rows' places as in StateBatch, slots that lie conv_slot, tail_slot and state_slot
// apart; rows of inputs have strides like bcx_token. Convolution of each channel of B · x, with bcx = [B | C | x];
// weight [num_taps, hidden], bias [hidden] or null.
template <typename T>
struct ShortConv : Op {
    const T* bcx;
    const float *weight, *bias;
    T *out, *conv, *tail;
    const int32_t *query_start_loc, *sources, *targets, *num_replayed, *num_drafts;
    const int32_t *checkpoint_loc, *checkpoint_ends, *checkpoint_slots;
    int64_t num_rows, hidden, num_taps, bcx_token, conv_slot, tail_slot;
};

// qkv = [q | k | v] by heads, gates = [b | a], a by heads, or by heads and rows of the state if a_dim is head_k_dim;
// state [Hv][head_k_dim][head_v_dim]. Value head h uses key head h % Hk if tiles_heads, else h / (Hv / Hk).
template <typename T>
struct GatedDelta : Op {
    const T *qkv, *gates;
    const float *weight, *a_log, *dt_bias;
    T *out, *conv, *tail;
    float* state;
    const int32_t *query_start_loc, *sources, *targets, *num_replayed, *num_drafts;
    const int32_t *checkpoint_loc, *checkpoint_ends, *checkpoint_slots;
    int64_t num_rows, num_taps, num_k_heads, head_k_dim, num_v_heads, head_v_dim, a_dim, tiles_heads;
    int64_t qkv_token, gates_token, conv_slot, tail_slot, state_slot;
};

// xbc = [x by heads | B by groups | C by groups]; state [heads][state_size][head_dim].
template <typename T>
struct Mamba2 : Op {
    const T *xbc, *dt;
    const float *weight, *bias, *a_log, *d, *dt_bias;
    T *out, *conv, *tail;
    float* state;
    const int32_t *query_start_loc, *sources, *targets, *num_replayed, *num_drafts;
    const int32_t *checkpoint_loc, *checkpoint_ends, *checkpoint_slots;
    int64_t num_rows, num_taps, num_heads, head_dim, num_groups, state_size;
    int64_t xbc_token, dt_token, conv_slot, tail_slot, state_slot;
    float dt_min, dt_max;
};

// RMSNorm of groups of columns, x · silu(gate) before or after it; weight [num_weights], again from its start on after
// so many columns. gate_row: stride of gate's rows.
template <typename T, typename W>
struct GatedRmsNorm : Op {
    const T *x, *gate;
    const W* weight;
    T* out;
    int64_t num_rows, width, group_size, num_weights, gate_row, norm_before_gate, is_sigmoid;
    float eps;
};

// out = x · activation(gate); kind 0: sigmoid, 1: silu, 2: gelu_tanh.
template <typename T>
struct GateMul : Op {
    const T *x, *gate;
    T* out;
    int64_t num_rows, width, gate_row, kind;
};

// Attention of rows [0, num_short) one query at a time, of rows [num_short, num_rows) in tiles. q [tokens, Hq, D] with
// the strides q_token and q_head; caches of T or int8 (paged_cache.h); block_tables [rows, max_blocks]; sinks [Hq] or null.
// A row with a lookahead runs in tiles, and so do all rows with a value_dim: out [tokens, Hq, value_dim], and the first
// numbers of a key are its value.
template <typename T>
struct PagedAttention : Op {
    const T* q;
    const void *k_cache, *v_cache;
    T* out;
    const int32_t *query_start_loc, *seq_lens, *block_tables;
    const float* sinks;
    int64_t num_short, num_rows, max_blocks, num_heads, num_kv_heads, head_dim, block_size, q_token, q_head, window;
    int64_t lookahead, is_cache_int8, value_dim;
    float scale, softcap;
};
template <typename T>
void attend_short_rows(const PagedAttention<T>& a, const Team& team);

// out = x [rows, inputs] times a weight in panels (linear.cpp), plus bias [outputs] or null; out_row: stride of out's
// rows.
template <typename T>
struct Linear : Op {
    const T *x, *data, *bias;
    T* out;
    int64_t num_rows, num_outputs, num_inputs, out_row;
};

// out = x [rows, inputs] times a quantized weight (quantized.h), plus bias [outputs] or null; out_row: stride of out's
// rows. input_bits: 8 rounds inputs to int8, 16 and 15 perhaps round inputs of bfloat16 to 15 bits, 0 is what is
// fastest of 8 and 16; input_group: number of inputs that are rounded together, at most 128, so that sums of 32 bits hold their products.
template <typename T>
struct QuantizedLinear : Op {
    const T* x;
    const uint8_t *values, *high, *table;
    const void *scales, *offsets;
    const uint16_t *super_scales, *super_offsets;
    const T* bias;
    T* out;
    int64_t num_rows, num_outputs, num_inputs, out_row, input_bits, input_group;
    int64_t bits, zero, group, super_group, scale_bytes, is_float8;
    float unit;
};

// Like Linear, for several weights that multiply rows of their own. weights [groups]: structs Linear without rows and
// results, with num_rows 1, or zeros for a group that has none; group g has rows starts[g] to starts[g + 1].
template <typename T>
struct GroupedLinear : Op {
    const T* x;
    const uint8_t* weights;
    const int64_t* starts;
    T* out;
    int64_t num_rows, num_groups, num_outputs, num_inputs, out_row;
};

// Like GroupedLinear, for structs QuantizedLinear that round inputs alike.
template <typename T>
struct GroupedQuantizedLinear : Op {
    const T* x;
    const uint8_t* weights;
    const int64_t* starts;
    T* out;
    int64_t num_rows, num_groups, num_outputs, num_inputs, out_row;
};

// out [rows, inputs] = rows `ids` of the weight.
template <typename T>
struct QuantizedEmbedding : Op {
    const int64_t* ids;
    const uint8_t *values, *high, *table;
    const void *scales, *offsets;
    const uint16_t *super_scales, *super_offsets;
    T* out;
    int64_t num_rows, num_inputs;
    int64_t bits, zero, group, super_group, scale_bytes, is_float8;
    float unit;
};

// values and high (or null) in the layout of quantized.h, from codes [outputs, inputs] plus `zero`, modulo 2^bits.
struct QuantizedValues : Op {
    const uint8_t* codes;
    uint32_t *values, *high;
    int64_t num_outputs, num_inputs, num_padded, bits, zero;
};

// codes [blocks, values] = fields of the blocks' bytes, less `middle`: see Plane in kernels/arguments.py. A second plane
// has the upper bits, or no bytes.
struct UnpackCodes : Op {
    const uint8_t* blocks;
    uint8_t* codes;
    int64_t num_blocks, block_bytes, num_values;
    int64_t begin, num_bytes, width, run, upper_begin, upper_bytes, upper_width, upper_run, middle;
};

// tokens[row] = argmax of logits[row] [vocab] + noise of keys[row].
struct GumbelArgmax : Op {
    const float* logits;
    const uint64_t* keys;
    int64_t* tokens;
    int64_t num_rows, vocab;
};

// largest[row], tokens[row] = max and argmax of logits[row] [vocab], the first among equals; NaN counts as the largest.
// The token is -1 if the largest is not finite.
template <typename T>
struct MaxLogits : Op {
    const T* logits;
    float* largest;
    int64_t* tokens;
    int64_t num_rows, vocab;
};

struct Softcap : Op {
    const float* x;
    float* out;
    int64_t count;
    float cap;
};

// out[i] = row indices[i] of x, or row i without indices; rows are [width], x_row is the stride of x's rows.
template <typename T>
struct SelectRows : Op {
    const T* x;
    const int64_t* indices;
    T* out;
    int64_t num_rows, width, x_row;
};

// out = activation(x); `kind` is the activation's number in elementwise.cpp.
template <typename T>
struct Activation : Op {
    const T* x;
    T* out;
    int64_t num_rows, width, kind;
};

// out = (x + other) · factor, rounded once, or x · factor if `other` is null; out may be x.
template <typename T>
struct AddScaled : Op {
    const T *x, *other;
    T* out;
    int64_t num_rows, width;
    float factor;
};

// weights and ids [tokens, top_k]: the chosen experts of logits [tokens, experts], as in `ops.route`; bias [experts] or
// null; jitter 0: none.
template <typename T>
struct Route : Op {
    const T* logits;
    const float* bias;
    float* weights;
    int32_t* ids;
    int64_t num_tokens, num_experts, top_k, is_sigmoid, is_renormalized, num_groups, num_kept_groups;
    int64_t num_group_scores;
    float scale, jitter;
};

// Pairs (token, k) sorted by their experts ids [tokens, top_k], those of an expert in order: the sorted pairs' tokens
// [tokens · top_k], each pair's place among them [tokens, top_k], each expert's first place [experts + 1].
struct SortPairs : Op {
    const int32_t* ids;
    int64_t *tokens, *places, *starts;
    int64_t num_tokens, top_k, num_experts;
};

// out[row][k] = x[row][orders[group][k]] for the rows of each group, starts[group] to starts[group + 1].
template <typename T>
struct OrderGroups : Op {
    const T* x;
    const int64_t *orders, *starts;
    T* out;
    int64_t num_rows, num_groups, width;
};

// out [tokens, width] = Σ_k weights[t, k] · x[places[t, k]], one k after the other, in float, rounded once; weights of 1
// if null.
template <typename T>
struct WeighPairs : Op {
    const T* x;
    const float* weights;
    const int64_t* places;
    T* out;
    int64_t num_tokens, top_k, width;
};

// out[places[t, k]] = weights[t, k] · x[t], rows [width].
template <typename T>
struct ScatterWeighed : Op {
    const T* x;
    const float* weights;
    const int64_t* places;
    T* out;
    int64_t num_tokens, top_k, width;
};

// out = x · rms(like) / rms(x), of rows.
template <typename T>
struct MatchRms : Op {
    const T *x, *like;
    T* out;
    int64_t num_rows, width;
};

// out_b = x_b + Σ_i coefs[row][b][i] · x_i, after `added` (or null) was added to all x but x_0.
template <typename T>
struct AltupPredict : Op {
    const T *x0, *x1, *x2, *x3, *added, *coefs;
    T *out0, *out1, *out2, *out3;
    int64_t num_rows, width;
};

// out_b = x_b + (activated - x_0) · (coefs[row][b] + 1).
template <typename T>
struct AltupCorrect : Op {
    const T *x0, *x1, *x2, *x3, *activated, *coefs;
    T *out0, *out1, *out2, *out3;
    int64_t num_rows, width;
};

// out = x + sigmoid(gate) · y, with one gate for each row.
template <typename T>
struct AddGated : Op {
    const T *x, *gate, *y;
    T* out;
    int64_t num_rows, width;
};

// out [rows, num_outputs] += the rows' adapters' products of x [rows, num_inputs], as in adapters.cpp. tiles [num_tiles]
// [18]: address of an adapter's entries, number of rows, rows; outputs [num_parts][2]: first output of a part, and their
// number; first_part: its entry.
template <typename T>
struct AddAdapters : Op {
    const T* x;
    T* out;
    const int64_t *tiles, *outputs;
    int64_t num_tiles, first_part, num_parts, num_inputs, num_outputs;
};

// out [rows, width] = Σ of every rank's partials [rows][num_partials][width], rank after rank, in float, rounded once.
// shared: memory of all ranks (ranks.cpp); state [2]: number of exchanges so far, and the reason that ended them (0:
// none).
template <typename T>
struct SumRanks : Op {
    const T* partials;
    T* out;
    void* shared;
    int64_t* state;
    int64_t num_rows, width, num_partials, rank, num_ranks, capacity, limit_ns;
};

// out [rows, row_bytes] (or null) = all ranks' columns; this rank's are x [rows, starts[rank + 1] - starts[rank]].
struct GatherRanks : Op {
    const uint8_t* x;
    uint8_t* out;
    void* shared;
    int64_t* state;
    const int64_t* starts;
    int64_t num_rows, rank, num_ranks, capacity, limit_ns;
};

// Product of each head with its own weight in panels (linear.cpp): x [tokens, heads, inputs] and out [tokens, heads,
// outputs] with strides of their tokens and heads.
template <typename T>
struct HeadLinear : Op {
    const T* x;
    const void* data;
    T* out;
    int64_t num_tokens, num_heads, num_inputs, num_outputs, x_token, x_head, out_token, out_head;
};

// Rotates the numbers of each head of q from `first` on into out [tokens, heads, rank + rotary], behind its `rank`, and
// writes a token's latent [rank] and its rotated key into the cache of T or int8.
template <typename T>
struct LatentAndCache : Op {
    const T *q, *latent, *k;
    T* out;
    void* cache;
    const float* cos_sin;
    const int64_t *positions, *slots;
    int64_t num_tokens, num_heads, rank, rotary, first, block_size, q_token, q_head, latent_token, k_token;
    int64_t is_cache_int8;
};

// A recorded forward pass (plan.py): all threads run op after op, with a barrier after every op.
struct RunPlan : Op {
    const int64_t* operations;  // [num_operations][2]: the op's C function, and the offset of its struct in `arguments`
    const int64_t* patches;     // [num_patches][4]: an offset in `arguments`, whose number is variable · factor + addend
    const int64_t* variables;
    uint8_t* arguments;
    int64_t num_operations, num_patches, num_products;
};
