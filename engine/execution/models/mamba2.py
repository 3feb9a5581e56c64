"""Mamba-2 and Bamba: state spaces."""

from collections.abc import Mapping
from typing import Any

from .decoder import WeightNames
from .hybrid import check_values, with_layer_kinds
from .mamba2_mixer import MambaDecoder
from .mixer_decoder import MixerDecoder


class Mamba2ForCausalLM(MixerDecoder):
    """Mamba-2 (Dao & Gu 2024): state spaces alone, without attention and MLPs.

    MixerDecoder whose layers are all alike.
    """

    defaults = {
        "num_heads": 128,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 8,
        "expand": 2,
        "conv_kernel": 4,
        "layer_norm_epsilon": 1e-5,
    }

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = raw
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


_KINDS = ("linear_attention", "full_attention")


class BambaForCausalLM(MambaDecoder):
    """Bamba (IBM et al. 2024): state spaces, a few layers of attention; half of each head rotates.

    MambaDecoder that names its layers with attention by their numbers.
    """

    defaults = {"mamba_n_heads": 128, "mamba_d_state": 256, "rms_norm_eps": 1e-5, "max_position_embeddings": 262144}
    partial_rotary = True
    names = WeightNames(norm="final_layernorm", mlp_norm="pre_ff_layernorm", mlp="feed_forward")

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = {**raw, "layer_types": None, "sliding_window": None}
        check_values(fields, hidden_act=("silu", "swish"))
        with_attention = fields.get("attn_layer_indices") or ()
        fields = with_layer_kinds(fields, _KINDS, lambda layer: _KINDS[layer in with_attention])
        return super().normalize_config({**fields, "partial_rotary_factor": 0.5})
