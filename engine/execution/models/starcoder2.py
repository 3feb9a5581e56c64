"""StarCoder 2 (Lozhkov et al. 2024): a Mistral with LayerNorm, biases, and an MLP without a gate."""

from collections.abc import Mapping
from typing import Any

from .layer_norm_decoder import LayerNormDecoder


class Starcoder2ForCausalLM(LayerNormDecoder):
    """LayerNormDecoder in which every layer has the window, if config.json states one."""

    mlp_names = ("mlp.c_fc", "mlp.c_proj")

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "tie_word_embeddings": True,
            "hidden_act": "gelu_pytorch_tanh",
            **raw,
            "layer_types": None,
            "rms_norm_eps": raw.get("norm_epsilon", 1e-5),
            "attention_bias": raw.get("use_bias", True),
            "mlp_bias": raw.get("use_bias", True),
        }
