"""OPT (Zhang et al. 2022): learned positions, from the table's third row; ReLU; the 350m normalises after each part."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ....kernels import ops
from ...formats.json_file import positive_int
from .decoder import Layer, WeightNames
from .forward_inputs import Inputs, select
from .layer_norm_decoder import LayerNormDecoder
from .layers import LayerNorm, NoNorm, Norm

_OFFSET = 2  # rows of the position table that no token uses


class OPTForCausalLM(LayerNormDecoder):
    """Decoder whose embeddings may be narrower than its layers, with a projection on either side."""

    partial_rotary = True
    names = WeightNames(
        embed="decoder.embed_tokens", norm="decoder.final_layer_norm", layers="decoder.layers",
        attention_norm="self_attn_layer_norm", o_proj="out_proj", mlp_norm="final_layer_norm",
    )  # fmt: skip
    mlp_names = ("fc1", "fc2")

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return {**raw, "word_embed_proj_dim": positive_int(raw, "word_embed_proj_dim", raw["hidden_size"])}

    def _embedding_size(self) -> int:
        return int(self.config.hf_config["word_embed_proj_dim"])

    def _load(self) -> None:
        config, narrow = self.config, self._embedding_size()
        self._is_pre_norm = bool(config.hf_config["do_layer_norm_before"])
        super()._load()
        shape = (config.max_position_embeddings + _OFFSET, config.hidden_size)
        self._embed_positions = self._take(f"{self._prefix}decoder.embed_positions.weight", *shape)[_OFFSET:]
        self._project_in = self._project_out = None
        if narrow != config.hidden_size:
            name = f"{self._prefix}decoder.project"
            self._project_in = self._linear([(f"{name}_in", config.hidden_size)], narrow, bias=False)
            self._project_out = self._linear([(f"{name}_out", narrow)], config.hidden_size, bias=False)

    def _load_norm(self, name: str) -> Norm:
        fields, config = self.config.hf_config, self.config
        is_last = name == f"{self._prefix}{self.names.norm}"
        if is_last and (not self._is_pre_norm or fields.get("_remove_final_layer_norm")):
            return NoNorm()
        if not fields["layer_norm_elementwise_affine"]:
            ones = torch.ones(config.hidden_size, dtype=self._dtype, device=self._device)
            return LayerNorm(ones, None, config.norm_eps)
        return super()._load_norm(name)

    def _embed(self, inputs: Inputs) -> Tensor:
        x = super()._embed(inputs)
        if self._project_in is not None:
            x = ops.linear(x, self._project_in)
        return x + self._embed_positions[inputs.positions]

    def _run_layer(
        self, layer: Layer, x: Tensor, residual: Tensor | None, inputs: Inputs, cache: Any, kept: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        if self._is_pre_norm:
            return super()._run_layer(layer, x, residual, inputs, cache, kept)
        x, _ = layer.attention_norm.add(*select(kept, layer.attention(x, inputs, cache), x))
        x, _ = layer.mlp_norm.add(layer.mlp(x), x)
        return x, None

    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(hidden if self._project_out is None else ops.linear(hidden, self._project_out))
