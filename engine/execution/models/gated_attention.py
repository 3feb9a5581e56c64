"""GatedAttention: attention whose output is multiplied by a sigmoid of the layer's input (Qiu et al. 2025)."""

from dataclasses import dataclass

from torch import Tensor

from ....kernels import ops
from .forward_inputs import Inputs
from .layers import Attention


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedAttention(Attention):
    """Attention with a gate for each element of its output; qkv_proj stacks queries, gates, keys and values."""

    def __call__(self, x: Tensor, inputs: Inputs, cache: ops.CacheView) -> Tensor:
        heads = ops.linear(x, self.qkv_proj).view(len(x), -1, self.head_dim)
        sizes = [self.num_heads, self.num_heads, self.num_kv_heads, self.num_kv_heads]
        q, gate, k, v = heads.split_with_sizes(sizes, dim=1)
        q = ops.rope_and_cache(q, k, v, inputs.positions, inputs.slot_mapping, self.rope, cache)
        out = ops.paged_attention(q, cache, inputs.ragged, self.args)
        return ops.linear(ops.sigmoid_mul(out.reshape(len(x), -1), gate.flatten(1)), self.o_proj)
