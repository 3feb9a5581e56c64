"""LatentDecoder: base of families with latent attention and DeepSeek's mixtures (DeepSeek-AI 2024, V2 and V3)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....kernels import ops
from ...errors import ConfigError
from ...formats.json_file import positive_int
from .config import ModelConfig
from .deepseek_moe import DeepseekSparseDecoder
from .forward_inputs import Inputs
from .layer_states import LatentKV, LayerState
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
    """Attention whose cache keeps one latent for all heads of a token (DeepSeek-AI 2024, V2: MLA).

    Keys and values are products of the latent, and are never made: the key's matrix is absorbed into the query, the
    value's multiplies the weighted sum of latents. So every number of new tokens, one or a whole prompt, has one order
    of sums. `sizes` are the parts of down_proj's output: query, latent, shared rotated key.
    """

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


_NORM_EPS = 1e-6  # epsilon of attention's norms, whatever rms_norm_eps is
_MAX_WIDTH = 1024  # limit of the native kernels


class LatentDecoder(DeepseekSparseDecoder):
    """DeepseekSparseDecoder with latent attention. The cache has one head for all, of latent and rotated key."""

    unrounded = (*DeepseekSparseDecoder.unrounded, "kv_b_proj.weight")  # cut into matrices of heads, one transposed

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        if raw.get("index_topk"):
            raise ConfigError(f"index_topk {raw['index_topk']}: attention to keys that an indexer chooses is not built")
        fields = {"rope_interleave": True, **raw}
        changes = {"head_dim": fields["qk_rope_head_dim"], "num_key_value_heads": 1, "partial_rotary_factor": 1.0}
        return super().normalize_config({**fields, **changes})

    @classmethod
    def layer_states(cls, config: ModelConfig) -> tuple[LayerState, ...]:
        state = LatentKV(positive_int(config.hf_config, "kv_lora_rank"), config.head_dim)
        if state.rank + state.rope_dim > _MAX_WIDTH:
            raise ConfigError(f"kv_lora_rank {state.rank} is not built; at most {_MAX_WIDTH - state.rope_dim}")
        return (state,) * config.num_layers

    def _load_attention(self, index: int) -> Any:
        config, name = self.config, f"{self._layer_name(index)}.{self.names.attention}"
        rope_dim, heads = config.head_dim, config.num_heads
        rank, nope, width = (
            positive_int(config.hf_config, size) for size in ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
        )
        q_size, q_rank = heads * (nope + rope_dim), config.hf_config.get("q_lora_rank")
        down = (f"{name}.q_proj", q_size) if q_rank is None else (f"{name}.q_a_proj", int(q_rank))
        key_up, value_up = self._load_up(name, rank, nope, width)
        return LatentAttention(
            down_proj=self._linear(
                [down, (f"{name}.kv_a_proj_with_mqa", rank + rope_dim)], config.hidden_size, bias=config.attention_bias
            ),
            sizes=(down[1], rank, rope_dim),
            query=None if q_rank is None else self._load_query(name, int(q_rank), q_size),
            latent_norm=RMSNorm(self._norm_weight(f"{name}.kv_a_layernorm", rank), _NORM_EPS),
            key_up=ops.pack_heads(key_up),
            value_up=ops.pack_heads(value_up),
            o_proj=self._row_parallel_linear(
                f"{name}.{self.names.o_proj}", config.hidden_size, heads * width, bias=config.attention_bias
            ),
            num_heads=heads,
            cos_sin=self._cos_sin[config.ropes[index]],
            args=ops.AttentionArgs(self._score_scale(nope + rope_dim), value_dim=rank),
        )

    def _load_query(self, name: str, rank: int, size: int) -> LowRankQuery:
        norm = RMSNorm(self._norm_weight(f"{name}.q_a_layernorm", rank), _NORM_EPS)
        return LowRankQuery(norm, self._linear([(f"{name}.q_b_proj", size)], rank, bias=False))

    def _load_up(self, name: str, rank: int, nope: int, width: int) -> tuple[Tensor, Tensor]:
        """Return the matrices that expand latents: of keys [heads, rank, nope], of values [heads, width, rank]."""
        heads = self.config.num_heads
        if not self._source.has(f"{name}.kv_b_proj.weight"):  # llama.cpp has cut it
            keys = self._take(f"{name}.k_b_proj.weight", heads, rank, nope)
            return keys, self._take(f"{name}.v_b_proj.weight", heads, width, rank)
        weight = self._take(f"{name}.kv_b_proj.weight", heads * (nope + width), rank)
        keys, values = weight.view(heads, nope + width, rank).split_with_sizes([nope, width], dim=1)
        return keys.transpose(1, 2), values

    def _score_scale(self, width: int) -> float:
        """Return the factor of scores, 1 / sqrt(width), times YaRN's temperature of all dimensions, squared."""
        parameters = self.config.hf_config.get("rope_scaling") or self.config.hf_config.get("rope_parameters") or {}
        mscale, factor = parameters.get("mscale_all_dim"), self.config.ropes[0].scaling.get("factor", 1.0)
        temperature = 1.0 + 0.1 * mscale * math.log(factor) if mscale and factor > 1 else 1.0
        return float(width**-0.5 * temperature**2)

    def _take_weight(self, name: str, *shape: int) -> Tensor | ops.QuantizedWeight:
        """Take a weight; the rows that rotate, in pairs, are reordered into halves."""
        weight = super()._take_weight(name, *shape)
        if not self.config.hf_config["rope_interleave"] or not name.endswith(_ROTATED):
            return weight
        order = self._order(shape[0], 1 if name.endswith(_ROTATED[0]) else self.config.num_heads)
        return weight[order] if isinstance(weight, Tensor) else weight.rows(order)

    def _take(self, name: str, *shape: int) -> Tensor:
        tensor = super()._take(name, *shape)
        is_bias = name.endswith("kv_a_proj_with_mqa.bias") and self.config.hf_config["rope_interleave"]
        return tensor[self._order(shape[0], 1)] if is_bias else tensor

    def _order(self, num_rows: int, num_heads: int) -> Tensor:
        """Return the rows' order: in each head first the rows that do not rotate, then the even and the odd others."""
        rows, rope_dim = torch.arange(num_rows).view(num_heads, -1), self.config.head_dim
        return torch.cat((rows[:, :-rope_dim], rows[:, -rope_dim::2], rows[:, 1 - rope_dim :: 2]), dim=1).flatten()


_ROTATED = ("kv_a_proj_with_mqa.weight", "q_proj.weight", "q_b_proj.weight")
