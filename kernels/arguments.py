"""Arguments of ops that belong together, as named tuples. Knows no backend."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from .quantize import QuantizedWeight

TILE = 16  # most rows of an adapter's tile: a GPU multiplies 16 at once
TILE_WIDTH = 2 + TILE
MAX_RANK = 256  # largest rank of an adapter


class RaggedBatch(NamedTuple):
    """Places of each row's tokens and cached keys. If `num_decodes` is a number, rows of one query token come first.

    The numbers on the host decide which kernels are launched, the tensors what these compute: a graph captured with
    bounds as `max_seq_len` and `max_query_len` serves every length below them.

    Row b owns query tokens [query_start_loc[b], query_start_loc[b + 1]), the last of its seq_lens[b] tokens. Their keys
    and values are in the blocks block_tables[b, : ceil(seq_lens[b] / S)]; further entries are padding.
    """

    query_start_loc: Tensor  # [B + 1] int32
    # [B] int32, tokens in the cache after this step's write, so at least the row's query length; 0: a row whose query
    # tokens only pad a graph
    seq_lens: Tensor
    block_tables: Tensor  # [B, max blocks] int32
    # Rows [0, num_decodes) have exactly one query token, the others two or more. None: any row may have any number, or
    # none, and the host does not know the numbers at launch
    num_decodes: int | None
    max_query_len: int  # upper bound over all rows
    max_seq_len: int  # upper bound over all rows
    plans: Mapping[str, Tensor] | None = (
        None  # a GPU's work lists of decodes (ops.decode_planner); None: made in the op
    )


class StateBatch(NamedTuple):
    """Places of each row's recurrent state: row b reads slot sources[b] and writes slot targets[b]. C checkpoints.

    A row's sequence is num_replayed[b] tokens of its source's tail, then its own query tokens, of which the last
    num_drafts[b] may be rejected: [0, replayed) from the tail | [replayed, certain) its own | [certain, end) drafts.
    The target gets the state after the certain tokens, and the drafts' raw inputs as its tail. No slot that a step
    writes is read or written by another row of the step, and no row's target is its source: a row can run again.
    """

    sources: Tensor  # [B] int32; -1: zeros, before the first token
    targets: Tensor  # [B] int32; -1: nothing is written
    num_replayed: Tensor  # [B] int32
    num_drafts: Tensor  # [B] int32
    checkpoint_loc: Tensor  # [B + 1] int32: row b's checkpoints are [checkpoint_loc[b], checkpoint_loc[b + 1])
    checkpoint_ends: Tensor  # [C] int32, ascending in a row: number of certain tokens of the sequence that are kept
    checkpoint_slots: Tensor  # [C] int32: slot that gets the state after these tokens


class StepArrays(NamedTuple):
    """Arrays that a forward pass reads besides the embedded tokens: T tokens, of which L need logits."""

    positions: Tensor  # [T] int64
    slot_mapping: Tensor  # [T] int64, block · block_size + offset
    ragged: RaggedBatch
    logits_indices: Tensor  # [L] int64, indices into T
    states: StateBatch | None = None  # None: no layer is recurrent
    adapter_tiles: Tensor | None = None  # tiles for `ops.add_adapters`; None: no row has an adapter


class CacheView(NamedTuple):
    """Paged keys and values of one layer, of equal strides, in the model's dtype, e4m3 (GPU) or int8 (CPU).

    e4m3 (Micikevicius et al. 2022) holds them divided by their head's scale and clamped to ±448. int8 has a scale for
    each head and token, max|x| / 127, within the tensor (int8_cache.py).
    """

    keys: Tensor  # [N, Hkv, S, D], in int8 [N, Hkv, S, D + 4]
    values: Tensor  # shaped like keys; the keys themselves in a latent cache (DeepSeek-AI 2024, V2), which has one head
    scales: Tensor | None = None  # [2, Hkv] float32, for keys and values; None: 1


class StateView(NamedTuple):
    """Recurrent states of one layer, contiguous within a slot."""

    conv: Tensor  # [slots, K - 1, C] last inputs of the convolution, oldest first, in the model's dtype
    state: Tensor | None = None  # [slots, heads, rows, columns] float32: keys by values; None: a convolution alone
    # [slots, max drafts, C + num_gates] raw inputs of drafted tokens, in the model's dtype; None: no drafts
    tail: Tensor | None = None


class RopeArgs(NamedTuple):
    """Rotation of a layer, and the norm of each head before it (Qwen3), with weights as rms_norm takes them."""

    # [max positions, R] float32, cosines in the first R/2 columns, sines in the rest; R ≤ D, 0: no rotation
    cos_sin: Tensor
    q_norm: Tensor | None = None  # [D]
    k_norm: Tensor | None = None  # [D]
    eps: float = 1e-6
    v_norm: Tensor | None = None  # [D]; values are normalised, not rotated (Gemma 3n)


class AttentionArgs(NamedTuple):
    """Attention settings of a layer, which turn scores into weights."""

    scale: float
    sliding_window: int = 0  # number of cached positions that a query sees, its own included; 0: all
    softcap: float = 0.0  # c turns a score s into c · tanh(s / c); 0: no cap
    lookahead: int = 0  # number of positions after its own that a query sees, as far as its row has them
    # [Hq] float32, a learned score of each head that joins the softmax and has no value (OpenAI 2025, gpt-oss)
    sinks: Tensor | None = None
    value_dim: int = 0  # with a latent cache: a key's first numbers are its value, and so wide is the output; 0: D


class RouteArgs(NamedTuple):
    """Choice of experts by score: softmax over all of them, or a sigmoid each (DeepSeek-AI 2024, V3).

    A bias decides who is chosen and changes no weight. With groups, a token chooses the groups with the largest sums of
    their best scores first, and experts within them.
    """

    top_k: int
    renormalize: bool  # True: the weights of the chosen sum to 1
    is_sigmoid: bool = False
    bias: Tensor | None = None  # [E] float32
    num_groups: int = 1  # divides E
    num_kept_groups: int = 1
    scale: float = 1.0  # factor of all weights
    num_group_scores: int = 2  # number of scores that a group counts, 1 or 2
    # Above 0: each choice has a softmax of its own over the experts not yet chosen whose logits are within twice this
    # share of the largest, relative to the larger magnitude (Liu et al. 2024, GRIN; Phi-3.5-MoE).
    jitter: float = 0.0


class ExpertArgs(NamedTuple):
    """What experts compute besides their products."""

    limit: float = 0.0  # of `reference.clamped_swiglu`, their activation; 0: silu_mul
    is_gelu: bool = False  # True: gelu_tanh_mul is their activation
    is_gated: bool = True  # False (a CPU's): one matrix of inputs, and relu_squared is their activation
    weighs_inputs: bool = False  # True: a weight is the factor of an expert's input, not of its output (Llama 4)


HEAD_INPUTS = 15  # `input_bits` of quantized weights that few rows multiply, where 15 bits are faster than 16
FAST_INPUTS = 0  # `input_bits` of quantized weights whose inputs may be rounded to int8 where that is faster
SWIGLU_EXPERTS = ExpertArgs()


class ExpertWeights(NamedTuple):
    """MLP of one expert."""

    gate_up: Sequence[Tensor | QuantizedWeight]  # matrices of H inputs that stack to [2·I, H], in silu_mul's order
    down: Tensor | QuantizedWeight  # [H, I]
    gate_up_bias: Tensor | None = None  # [2·I]
    down_bias: Tensor | None = None  # [H]


class AdapterPart(NamedTuple):
    """Low-rank change of some outputs of a linear: scale · B A (Hu et al. 2021, LoRA)."""

    a: Tensor  # [r, in]
    b: Tensor  # [out, r], of a's dtype
    scale: float


class AdapterPlace(NamedTuple):
    """Parts of one linear in every table, and the outputs that each part changes."""

    first: int  # the first part's entry
    outputs: Tensor  # [parts, 2] int64: first output and number of outputs
