"""Bamba (IBM et al. 2024): state spaces, a few layers of attention; half of each head rotates."""

from collections.abc import Mapping
from typing import Any

from .decoder import Names
from .hybrid import check_values, with_layer_kinds
from .mamba2_mixer import MambaDecoder

_KINDS = ("linear_attention", "full_attention")
_DEFAULTS = {"mamba_n_heads": 128, "mamba_d_state": 256, "rms_norm_eps": 1e-5, "max_position_embeddings": 262144}


class BambaForCausalLM(MambaDecoder):
    """MambaDecoder that names its layers with attention by their numbers."""

    partial_rotary = True
    names = Names(norm="final_layernorm", mlp_norm="pre_ff_layernorm", mlp="feed_forward")

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = {**_DEFAULTS, **raw, "layer_types": None, "sliding_window": None}
        check_values(fields, hidden_act=("silu", "swish"))
        with_attention = fields.get("attn_layer_indices") or ()
        fields = with_layer_kinds(fields, _KINDS, lambda layer: _KINDS[layer in with_attention])
        return super().normalize_config({**fields, "partial_rotary_factor": 0.5})
