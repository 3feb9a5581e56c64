"""Nemotron-4 and Minitron (NVIDIA 2024): LayerNorm with its weight less 1, relu(x)², half of a head rotates."""

from collections.abc import Mapping
from typing import Any

from .layers import LayerNorm, Norm
from .ungated_decoder import UngatedDecoder


class NemotronForCausalLM(UngatedDecoder):
    """Llama without a gate whose norms subtract the mean."""

    partial_rotary = True

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().normalize_config(
            {
                "hidden_act": "relu2",
                "partial_rotary_factor": raw.get("rope_percent", 0.5),
                **raw,
                "rms_norm_eps": raw.get("norm_eps", 1e-5),
            }
        )

    def _load_norm(self, name: str) -> Norm:
        size = self.config.hidden_size
        weight = self._take(f"{name}.weight", size) + 1.0
        return LayerNorm(weight, self._take(f"{name}.bias", size), self.config.norm_eps)
