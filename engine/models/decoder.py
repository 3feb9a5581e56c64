"""The one decoder: pre-norm attention and gated MLP over a paged cache. A family states only its difference.

Weights keep their checkpoint names; q, k and v become one matrix, gate and up another.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...kernels import ops
from ..config import ModelConfig
from ..errors import ConfigError
from ..inputs import Inputs
from ..kv_cache import KVCache
from ..layers import rope_table
from ..weights import WeightSource


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights, the matrices packed by `ops.pack_linear`."""

    input_layernorm: Tensor
    qkv_proj: Any
    q_norm: Tensor | None
    k_norm: Tensor | None
    o_proj: Any
    post_attention_layernorm: Tensor
    gate_up_proj: Any
    down_proj: Any
    sliding_window: int


class Decoder:
    """A Llama-shaped model: RMSNorm, rotary embedding, grouped-query attention, SwiGLU."""

    # What families differ in.
    qkv_bias: ClassVar[bool | None] = None  # None: as config.attention_bias says
    o_bias: ClassVar[bool | None] = None
    qk_norm: ClassVar[bool] = False  # RMSNorm on each query and key head, before the rotation

    def __init__(self, config: ModelConfig, source: WeightSource, *, device: torch.device, max_model_len: int) -> None:
        if config.hidden_act not in ("silu", "swish"):
            raise ConfigError(f"hidden_act {config.hidden_act!r} is not known for {config.architecture}; known: silu")
        self.config = config
        self._source = source
        self._device = device
        self._scale = config.head_dim**-0.5
        self._cos_sin = rope_table(config.rope, head_dim=config.head_dim, num_positions=max_model_len, device=device)
        table = (config.vocab_size, config.hidden_size)
        self._embed_tokens = self._take("model.embed_tokens.weight", *table)
        self._layers = [self._load_layer(index) for index in range(config.num_layers)]
        self._norm = self._take("model.norm.weight", config.hidden_size)
        head = self._embed_tokens if config.tie_word_embeddings else self._take("lm_head.weight", *table)
        self._lm_head = ops.pack_linear(head)
        del self._source

    def forward(self, inputs: Inputs, kv_cache: KVCache) -> Tensor:
        """Last hidden states of the tokens at `logits_indices`, [L, hidden_size]; `logits` takes them."""
        x = self._embed_tokens[inputs.token_ids]
        residual: Tensor | None = None
        for layer, cache in zip(self._layers, kv_cache.layers, strict=True):
            x, residual = self._norm_add(x, residual, layer.input_layernorm)
            x = self._attention(layer, x, inputs, cache)
            x, residual = self._norm_add(x, residual, layer.post_attention_layernorm)
            x = ops.linear(ops.silu_mul(ops.linear(x, layer.gate_up_proj)), layer.down_proj)
        assert residual is not None
        kept = inputs.logits_indices
        return self._norm_add(x[kept], residual[kept], self._norm)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states [L, hidden_size], [L, vocab_size] float32: wide, so who calls says of how many."""
        return ops.linear(hidden, self._lm_head).float()

    def _norm_add(self, x: Tensor, residual: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        eps = self.config.rms_norm_eps
        if residual is None:
            return ops.rms_norm(x, weight, eps=eps), x
        return ops.add_rms_norm(x, residual, weight, eps=eps)

    def _attention(self, layer: Layer, x: Tensor, inputs: Inputs, cache: tuple[Tensor, Tensor]) -> Tensor:
        config = self.config
        heads = ops.linear(x, layer.qkv_proj).view(len(x), -1, config.head_dim)
        q, k, v = torch.split(heads, [config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        q = ops.rope_and_cache(
            q,
            k,
            v,
            self._cos_sin,
            inputs.positions,
            inputs.slot_mapping,
            *cache,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            eps=config.rms_norm_eps,
        )
        out = ops.paged_attention(q, *cache, inputs.ragged, scale=self._scale, sliding_window=layer.sliding_window)
        return ops.linear(out.reshape(len(x), -1), layer.o_proj)

    def _take(self, name: str, *shape: int) -> Tensor:
        return self._source.take(name, shape).to(self._device)

    def _load_layer(self, index: int) -> Layer:
        config = self.config
        hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
        attention, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
        q_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim
        qkv = [(f"{attention}.q_proj", q_size), (f"{attention}.k_proj", kv_size), (f"{attention}.v_proj", kv_size)]
        gate_up = [(f"{mlp}.gate_proj", inner), (f"{mlp}.up_proj", inner)]
        qkv_bias = config.attention_bias if self.qkv_bias is None else self.qkv_bias
        o_bias = config.attention_bias if self.o_bias is None else self.o_bias
        return Layer(
            input_layernorm=self._take(f"model.layers.{index}.input_layernorm.weight", hidden),
            qkv_proj=self._linear(qkv, hidden, bias=qkv_bias),
            q_norm=self._take(f"{attention}.q_norm.weight", head_dim) if self.qk_norm else None,
            k_norm=self._take(f"{attention}.k_norm.weight", head_dim) if self.qk_norm else None,
            o_proj=self._linear([(f"{attention}.o_proj", hidden)], q_size, bias=o_bias),
            post_attention_layernorm=self._take(f"model.layers.{index}.post_attention_layernorm.weight", hidden),
            gate_up_proj=self._linear(gate_up, hidden, bias=config.mlp_bias),
            down_proj=self._linear([(f"{mlp}.down_proj", hidden)], inner, bias=config.mlp_bias),
            sliding_window=config.sliding_windows[index],
        )

    def _linear(self, parts: list[tuple[str, int]], in_features: int, *, bias: bool) -> Any:
        """Matrices of one input, stacked into one."""
        weight = torch.cat([self._take(f"{name}.weight", size, in_features) for name, size in parts])
        stacked_bias = torch.cat([self._take(f"{name}.bias", size) for name, size in parts]) if bias else None
        return ops.pack_linear(weight, stacked_bias)
