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

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        check_values(raw, hidden_act=("silu", "swish"))
        kinds, width = ["linear_attention"] * raw["num_hidden_layers"], raw["expand"] * raw["hidden_size"]
        return super().normalize_config({**raw, "layer_kinds": kinds, "mamba_d_ssm": width})


_KINDS = ("linear_attention", "full_attention")


class BambaForCausalLM(MambaDecoder):
    """Bamba (IBM et al. 2024): state spaces, a few layers of attention; half of each head rotates.

    MambaDecoder that names its layers with attention by their numbers.
    """

    partial_rotary = True
    names = WeightNames(norm="final_layernorm", mlp_norm="pre_ff_layernorm", mlp="feed_forward")

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        check_values(raw, hidden_act=("silu", "swish"))
        with_attention = raw.get("attn_layer_indices") or ()
        return super().normalize_config(with_layer_kinds(raw, _KINDS, lambda layer: _KINDS[layer in with_attention]))
