"""Mamba-2 (Dao & Gu 2024): state spaces alone, without attention and MLPs."""

from collections.abc import Mapping
from typing import Any

from .hybrid import check_values
from .mixer_decoder import MixerDecoder

_DEFAULTS = {
    "num_heads": 128,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 8,
    "expand": 2,
    "conv_kernel": 4,
    "layer_norm_epsilon": 1e-5,
}


class Mamba2ForCausalLM(MixerDecoder):
    """MixerDecoder whose layers are all alike."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = {**_DEFAULTS, **raw}
        check_values(fields, hidden_act=("silu", "swish"))
        return super().normalize_config(
            {
                **fields,
                "layer_types": None,
                "layer_kinds": ["linear_attention"] * fields["num_hidden_layers"],
                "rms_norm_eps": fields["layer_norm_epsilon"],
                "mamba_n_heads": fields["num_heads"],
                "mamba_d_head": fields["head_dim"],
                "mamba_d_ssm": fields["expand"] * fields["hidden_size"],
                "mamba_n_groups": fields["n_groups"],
                "mamba_d_state": fields["state_size"],
                "mamba_d_conv": fields["conv_kernel"],
                "mamba_conv_bias": fields.get("use_conv_bias", True),
                "mamba_proj_bias": fields.get("use_bias", False),
                # There is no attention: one head, and the cache keeps nothing of it.
                "num_attention_heads": 1,
                "num_key_value_heads": 1,
                "head_dim": 2,
                "intermediate_size": 1,
                "partial_rotary_factor": 0.0,
                "max_position_embeddings": fields.get("max_position_embeddings", 2**20),
            }
        )
