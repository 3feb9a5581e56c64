"""LatentAttention: attention whose cache keeps one latent for all heads of a token (DeepSeek-AI 2024, V2: MLA).

Keys and values are products of the latent, and are never made: the key's matrix is absorbed into the query, the value's
multiplies the weighted sum of latents. So every number of new tokens, one or a whole prompt, has one order of sums.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ....kernels import ops
from .forward_inputs import Inputs
from .layers import RMSNorm


@dataclass(frozen=True, slots=True)
class LowRankQuery:
    """Second factor of the matrix of queries, and the norm before it; LatentAttention multiplies by the first."""

    norm: RMSNorm
    up_proj: Any

    def __call__(self, x: Tensor) -> Tensor:
        return ops.linear(self.norm(x), self.up_proj)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Latent attention of one layer; `sizes` are the parts of down_proj's output: query, latent, shared rotated key."""

    down_proj: Any
    sizes: tuple[int, int, int]
    query: LowRankQuery | None  # None: down_proj has whole queries
    latent_norm: RMSNorm
    key_up: Any  # [heads, latent, key] of `ops.pack_heads`
    value_up: Any  # [heads, value, latent]
    o_proj: Any
    num_heads: int
    cos_sin: Tensor  # table of `rope_table`
    args: ops.AttentionArgs

    def __call__(self, x: Tensor, inputs: Inputs, cache: ops.CacheView) -> Tensor:
        q, latent, k = ops.linear(x, self.down_proj).split_with_sizes(list(self.sizes), dim=1)
        if self.query is not None:
            q = self.query(q)
        q = ops.latent_and_cache(
            q.view(len(x), self.num_heads, -1),
            self.latent_norm(latent),
            k,
            inputs.positions,
            inputs.slot_mapping,
            self.cos_sin,
            self.key_up,
            cache,
        )
        out = ops.head_linear(ops.paged_attention(q, cache, inputs.ragged, self.args), self.value_up)
        return ops.linear(out.flatten(1), self.o_proj)
