"""Arcee's AFM (Arcee 2025): a Llama with an MLP of two matrices around relu(x)²."""

from collections.abc import Mapping
from typing import Any

from .ungated_decoder import UngatedDecoder


class ArceeForCausalLM(UngatedDecoder):
    """Llama without a gate."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().normalize_config({"hidden_act": "relu2", "rms_norm_eps": 1e-5, **raw})
