"""SharedKVGemma: base of Gemma 3n and 4, whose last layers read earlier layers' keys and values, and input embeddings.

Each layer adds a part of a second embedding of the token, its per-layer input, beside attention and MLP.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....kernels import ops
from ...errors import ConfigError
from ...formats.json_file import positive_int
from .config import ModelConfig
from .decoder import Decoder
from .forward_inputs import Inputs
from .gemma import Gemma2ForCausalLM
from .layer_states import LayerState, SharedKV
from .layers import Attention, Norm

_KINDS = ("sliding_attention", "full_attention")
_SHARED = tuple(f".self_attn.{name}.weight" for name in ("k_proj", "v_proj", "k_norm", "v_norm"))
_OTHER_PARTS = tuple(
    f"{prefix}{part}."
    for prefix in ("model.", "")
    for part in ("vision_tower", "audio_tower", "embed_vision", "embed_audio", "multi_modal_projector")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedKVAttention(Attention):
    """Attention that may have no keys and values of its own, or whose values are its keys before norm and rotation."""

    is_reader: bool  # True: keys and values are another layer's
    values_are_keys: bool

    def __call__(self, x: Tensor, inputs: Inputs, cache: ops.CacheView) -> Tensor:
        q = ops.linear(x, self.qkv_proj).view(len(x), -1, self.head_dim)
        if self.is_reader:
            q = ops.rotate(q, inputs.positions, self.rope)
        else:
            sizes = [self.num_heads, self.num_kv_heads, *([] if self.values_are_keys else [self.num_kv_heads])]
            q, k, *values = q.split_with_sizes(sizes, dim=1)
            v = values[0] if values else k
            q = ops.rope_and_cache(q, k, v, inputs.positions, inputs.slot_mapping, self.rope, cache)
        out = ops.paged_attention(q, cache, inputs.ragged, self.args)
        return ops.linear(out.view(len(x), -1), self.o_proj)


@dataclass(frozen=True, slots=True)
class PerLayerInput:
    """Part of a layer after its MLP: norm(projection(gelu(gate(x)) · the token's embedding for this layer))."""

    gate: Any
    projection: Any
    norm: Norm

    def __call__(self, x: Tensor, embedded: Tensor) -> Tensor:
        return self.norm(ops.linear(ops.gate_mul(embedded, ops.linear(x, self.gate), "gelu_tanh"), self.projection))


class SharedKVGemma(Gemma2ForCausalLM):
    """Gemma 2 with plain norm weights and norms of queries, keys and values.

    Normalized fields: `paged` is each layer's shape of keys and values, `num_readers` the number of last layers that
    reuse the nearest earlier cache of their kind.
    """

    partial_rotary = True

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config({"attn_logit_softcapping": None, **raw})
        num_layers = positive_int(fields, "num_hidden_layers")
        num_readers = fields.get("num_kv_shared_layers") or 0
        if not 0 <= num_readers < num_layers:
            raise ConfigError(f"num_kv_shared_layers {num_readers} must be below num_hidden_layers {num_layers}")
        kinds = fields["layer_types"]
        if unknown := set(kinds) - set(_KINDS):
            raise ConfigError(f"layer_types: {unknown.pop()!r} is not known; known: {', '.join(_KINDS)}")
        if missing := set(kinds) - set(kinds[: num_layers - num_readers]):
            raise ConfigError(f"layer_types: no layer before the last {num_readers} is {missing.pop()}, to be shared")
        size = fields.get("hidden_size_per_layer_input")
        return {**fields, "num_readers": num_readers, "hidden_size_per_layer_input": size or 0, "rope_scaling": None}

    @classmethod
    def layer_states(cls, config: ModelConfig) -> tuple[LayerState, ...]:
        paged, kinds = config.hf_config["paged"], config.hf_config["layer_types"]
        first = config.num_layers - config.hf_config["num_readers"]
        sources = {kind: layer for layer, kind in enumerate(kinds[:first])}  # the last of its kind
        return (*paged[:first], *(SharedKV(sources[kind]) for kind in kinds[first:]))

    def _is_ignored(self, name: str) -> bool:
        """True of encoders of images and sound, too, and of keys and values in layers that read another's."""
        if super()._is_ignored(name) or name.startswith(_OTHER_PARTS):
            return True
        return name.endswith(_SHARED) and any(name.startswith(f"{self._layer_name(i)}.") for i in self._readers)

    @property
    def _readers(self) -> range:
        num_layers = self.config.num_layers
        return range(num_layers - self.config.hf_config["num_readers"], num_layers)

    @property
    def _input_size(self) -> int:
        """Width of a layer's per-layer input; 0 if there are none."""
        return int(self.config.hf_config["hidden_size_per_layer_input"])

    def _load(self) -> None:
        config, size = self.config, self._input_size
        if not self._parallel.is_whole:
            raise ConfigError(f"--tensor-parallel-size is not built for {config.architecture}; leave it out")
        self._unrotated = torch.empty(len(self._cos_sin[config.ropes[0]]), 0, device=self._device)
        if size:
            width, name = config.num_layers * size, f"{self._prefix}embed_tokens_per_layer.weight"
            self._num_inputs = positive_int(config.hf_config, "vocab_size_per_layer_input", config.vocab_size)
            self._inputs_table = self._load_embedding(name, self._num_inputs, width)
            self._inputs_projection = self._linear(
                [(f"{self._prefix}per_layer_model_projection", width)], config.hidden_size, bias=False
            )
            weight = self._norm_weight(f"{self._prefix}per_layer_projection_norm", size)
            # The projection's factor hidden_size^-0.5 before the norm is one of eps. Half the sum's variance is each's.
            self._inputs_norm = ops.RopeArgs(
                self._unrotated, q_norm=weight.float() * 0.5**0.5, eps=config.norm_eps * config.hidden_size
            )
        super()._load()

    def _embedded_size(self) -> int:
        return self.config.hidden_size + self.config.num_layers * self._input_size

    def _embed(self, inputs: Inputs) -> Tensor:
        """Return [T, hidden_size + layers · input size]: the tokens' embeddings and their inputs of all layers."""
        x = super()._embed(inputs)
        if not self._input_size:
            return x
        ids = inputs.token_ids
        if self._num_inputs < self.config.vocab_size:
            ids = torch.where(ids < self._num_inputs, ids, 0)
        is_plain = isinstance(self._inputs_table, Tensor)
        embedded = self._inputs_table.index_select(0, ids) if is_plain else ops.embedding(ids, self._inputs_table)
        return torch.cat((x, embedded.mul_((self._input_size / 2) ** 0.5)), dim=1)

    def _split_inputs(self, x: Tensor, inputs: Inputs) -> tuple[Tensor, list[Tensor]]:
        """Split `_embed`'s result into embeddings and each layer's input [T, input size]."""
        num_layers, size = self.config.num_layers, self._input_size
        if not size:
            return x, []
        x, embedded = x.split_with_sizes([self.config.hidden_size, num_layers * size], dim=1)
        x = x.contiguous()
        projected = ops.linear(x, self._inputs_projection).view(len(x), num_layers, size)
        summed = ops.rotate(projected, inputs.positions, self._inputs_norm).flatten(1) + embedded.contiguous()
        return x, list(summed.split_with_sizes([size] * num_layers, dim=1))

    def _norm_weight(self, name: str, size: int) -> Tensor:
        return Decoder._norm_weight(self, name, size)

    def _load_attention(self, index: int) -> SharedKVAttention:
        config, name = self.config, f"{self._layer_name(index)}.self_attn"
        paged, is_reader = config.hf_config["paged"][index], index in self._readers
        values_are_keys = not is_reader and not self._has_values(index)
        q_size, kv_size = config.num_heads * paged.head_dim, paged.num_kv_heads * paged.head_dim
        names = [] if is_reader else ["k_proj"] if values_are_keys else ["k_proj", "v_proj"]
        parts = [(f"{name}.q_proj", q_size), *((f"{name}.{part}", kv_size) for part in names)]
        k_norm = None if is_reader else self._norm_weight(f"{name}.k_norm", paged.head_dim)
        return SharedKVAttention(
            qkv_proj=self._linear(parts, config.hidden_size, bias=config.attention_bias),
            o_proj=self._linear([(f"{name}.o_proj", config.hidden_size)], q_size, bias=config.attention_bias),
            num_heads=config.num_heads,
            num_kv_heads=paged.num_kv_heads,
            head_dim=paged.head_dim,
            rope=ops.RopeArgs(
                self._cos_sin[config.ropes[index]],
                q_norm=self._norm_weight(f"{name}.q_norm", paged.head_dim),
                k_norm=k_norm,
                v_norm=None if k_norm is None else torch.ones_like(k_norm),
                eps=config.norm_eps,
            ),
            args=ops.AttentionArgs(1.0, sliding_window=config.sliding_windows[index]),
            is_reader=is_reader,
            values_are_keys=values_are_keys,
        )

    def _has_values(self, index: int) -> bool:
        """True if the layer has a projection of values."""
        return True

    def _load_per_layer_input(self, index: int) -> PerLayerInput:
        layer, hidden, size = self._layer_name(index), self.config.hidden_size, self._input_size
        return PerLayerInput(
            gate=self._load_input_gate(layer),
            projection=self._linear([(f"{layer}.per_layer_projection", hidden)], size, bias=False),
            norm=self._load_norm(f"{layer}.post_per_layer_input_norm"),
        )

    def _load_input_gate(self, layer: str) -> Any:
        return self._linear([(f"{layer}.per_layer_input_gate", self._input_size)], self.config.hidden_size, bias=False)


def text_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a model's text part, which are at the top if there is no other part."""
    return {**raw, **(raw.get("text_config") or {}), "architectures": raw["architectures"]}
