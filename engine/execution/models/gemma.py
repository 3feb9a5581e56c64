"""Gemma (Gemma Team 2024): norm weights are stored less 1, embeddings are scaled by sqrt(hidden size), GEGLU."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...errors import ConfigError
from .decoder import Decoder
from .forward_inputs import Inputs

_DEFAULTS = {
    "tie_word_embeddings": True,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "hidden_act": "gelu_pytorch_tanh",
}


class GemmaForCausalLM(Decoder):
    """Llama whose heads may be wider than hidden_size / num_heads; no windows yet."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config({**_DEFAULTS, **raw, "sliding_window": None, "layer_types": None})
        if fields.get("use_bidirectional_attention"):
            raise ConfigError("use_bidirectional_attention: tokens are generated one after the other here")
        if fields["hidden_act"] == "gelu":  # the first checkpoints say gelu, but were trained with the approximation
            fields["hidden_act"] = "gelu_pytorch_tanh"
        return fields

    def _load(self) -> None:
        super()._load()
        # The factor is rounded to the model's dtype, as in training: 33.94 is 34 in bfloat16.
        factor = torch.tensor(self.config.hidden_size**0.5, dtype=self._dtype)
        self._embed_factor = float(factor)

    def _embed(self, inputs: Inputs) -> Tensor:
        return super()._embed(inputs).mul_(self._embed_factor)

    def _norm_weight(self, name: str, size: int) -> Tensor:
        # float32, because in bfloat16 most of 1 + w would round to 1.
        return 1.0 + super()._norm_weight(name, size).float()
