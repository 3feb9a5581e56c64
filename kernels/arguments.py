"""Values that ops take: what belongs together, in one hand. Knows no backend."""

from typing import NamedTuple

from torch import Tensor


class RaggedBatch(NamedTuple):
    """Where each row's tokens and cached keys lie. Rows of one query token come first where `num_decodes` is a number.

    The numbers on the host decide what is launched, the tensors what is done: a graph captured with bounds as
    `max_seq_len` and `max_query_len` serves every length below them.

    A row b owns query tokens [query_start_loc[b], query_start_loc[b + 1]); they are the last of its seq_lens[b] tokens,
    whose keys and values stand in the blocks block_tables[b, : ceil(seq_lens[b] / S)]. Further entries are padding.
    """

    query_start_loc: Tensor  # [B + 1] int32
    # [B] int32, tokens in the cache after this step's write, so at least the row's query length; 0: a row whose query
    # tokens only fill a graph up
    seq_lens: Tensor
    block_tables: Tensor  # [B, max blocks] int32
    # Rows [0, num_decodes) have exactly one query token, the others two or more. None: any row may have any number, or
    # none, which the host does not know when it launches
    num_decodes: int | None
    max_query_len: int  # no row has more
    max_seq_len: int  # no row has more


class StepArrays(NamedTuple):
    """What a forward pass over T tokens, L of which need logits, reads beside the embedded tokens."""

    positions: Tensor  # [T] int64
    slot_mapping: Tensor  # [T] int64, block · block_size + offset
    ragged: RaggedBatch
    logits_indices: Tensor  # [L] int64, T-indices


class CacheView(NamedTuple):
    """The paged keys and values of one layer, of equal strides, in the model's dtype, e4m3 (GPU) or int8 (CPU).

    e4m3 (Micikevicius et al. 2022) holds them over their head's scale, cut off at ±448. int8 has a scale for each head
    and token, max|x| / 127, within the tensor: int8_cache.py.
    """

    keys: Tensor  # [N, Hkv, S, D], of int8 [N, Hkv, S, D + 4]
    values: Tensor  # likewise
    scales: Tensor | None = None  # [2, Hkv] float32, the keys' and the values'; None: 1


class RopeArgs(NamedTuple):
    """A layer's rotation, and the norm of each head before it (Qwen3), whose weights are as rms_norm takes them."""

    # [max positions, R] float32, cosines in the first R/2 columns, sines in the rest; R ≤ D, 0: nothing is rotated
    cos_sin: Tensor
    q_norm: Tensor | None = None  # [D]
    k_norm: Tensor | None = None  # [D]
    eps: float = 1e-6


class AttentionArgs(NamedTuple):
    """How a layer's scores become weights."""

    scale: float
    sliding_window: int = 0  # cached positions that a query sees, its own included; 0: all
    softcap: float = 0.0  # c: a score s becomes c · tanh(s / c); 0: it stays
