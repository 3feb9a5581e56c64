"""Gemma 2 (Gemma Team 2024): norms before and after each part, soft-caps, a window in every other layer."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from ....kernels import ops
from ...formats.positive_numbers import positive_number
from .decoder import Layer
from .gemma import GemmaForCausalLM
from .layers import Attention, Normed

_DEFAULTS = {
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}


class Gemma2ForCausalLM(GemmaForCausalLM):
    """Gemma with its own scale of attention scores."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = {**super().normalize_config(raw), **_DEFAULTS, **raw}
        if not fields.get("layer_types"):
            kinds = ("sliding_attention", "full_attention")
            fields["layer_types"] = [kinds[index % 2] for index in range(fields["num_hidden_layers"])]
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            fields[name] = 0.0 if fields[name] is None else positive_number(fields, name)
        fields["query_pre_attn_scalar"] = positive_number(fields, "query_pre_attn_scalar")
        fields["hidden_act"] = fields["hidden_activation"]
        return fields

    def logits(self, hidden: Tensor) -> Tensor:
        logits, cap = super().logits(hidden).float(), self.config.hf_config["final_logit_softcapping"]
        return ops.softcap(logits, cap) if cap else logits

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
