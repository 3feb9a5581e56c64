"""Gemma 2 (Gemma Team 2024): norms before and after each part, soft-caps, every other layer sees a window."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...kernels import ops
from ..errors import ConfigError
from .checkpoint import positive_number
from .decoder import Decoder, Layer
from .forward_inputs import Inputs
from .layers import Attention, Normed

_DEFAULTS = {
    "tie_word_embeddings": True,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}


class Gemma2ForCausalLM(Decoder):
    """Norm weights are stored less 1; scores have a scale of their own; embeddings are scaled by sqrt(hidden size)."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config({**_DEFAULTS, **raw})
        if fields.get("use_bidirectional_attention"):
            raise ConfigError("use_bidirectional_attention: tokens are generated one after the other here")
        if not fields.get("layer_types"):
            kinds = ("sliding_attention", "full_attention")
            fields["layer_types"] = [kinds[index % 2] for index in range(fields["num_hidden_layers"])]
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            fields[name] = 0.0 if fields[name] is None else positive_number(fields, name)
        fields["query_pre_attn_scalar"] = positive_number(fields, "query_pre_attn_scalar")
        fields["hidden_act"] = fields["hidden_activation"]
        return fields

    def _load(self) -> None:
        super()._load()
        # The factor is rounded to the model's dtype, as in training: 33.94 is 34 in bfloat16.
        factor = torch.tensor(self.config.hidden_size**0.5, dtype=self._dtype)
        self._embed_factor = float(factor)

    def _embed(self, inputs: Inputs) -> Tensor:
        return super()._embed(inputs).mul_(self._embed_factor)

    def logits(self, hidden: Tensor) -> Tensor:
        logits, cap = super().logits(hidden), self.config.hf_config["final_logit_softcapping"]
        return ops.softcap(logits, cap) if cap else logits

    def _norm_weight(self, name: str, size: int) -> Tensor:
        # In float32: in bfloat16 most of 1 + w would be 1.
        return 1.0 + super()._norm_weight(name, size).float()

    def _load_attention(self, index: int) -> Attention:
        fields = self.config.hf_config
        scale, softcap = fields["query_pre_attn_scalar"] ** -0.5, fields["attn_logit_softcapping"]
        attention = super()._load_attention(index)
        return replace(attention, args=attention.args._replace(scale=scale, softcap=softcap))

    def _load_layer(self, index: int) -> Layer:
        layer = self._layer_name(index)
        return Layer(
            attention_norm=self._load_norm(f"{layer}.input_layernorm"),
            attention=Normed(self._load_attention(index), self._load_norm(f"{layer}.post_attention_layernorm")),
            mlp_norm=self._load_norm(f"{layer}.pre_feedforward_layernorm"),
            mlp=Normed(self._load_mlp(index), self._load_norm(f"{layer}.post_feedforward_layernorm")),
        )
