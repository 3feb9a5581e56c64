"""GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023): a Falcon that rotates a quarter of each head."""

from collections.abc import Mapping
from typing import Any

from .decoder import Names
from .falcon import FalconForCausalLM
from .parallel_decoder import ParallelDecoder


class GPTNeoXForCausalLM(FalconForCausalLM):
    """Falcon whose checkpoint stores the query, key and value rows of one head after the other."""

    partial_rotary = True
    names = Names(prefix="gpt_neox.", embed="embed_in", norm="final_layer_norm", attention="attention", o_proj="dense")
    ignored = (  # causal masks, and a tied head
        ".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq", "lm_head.weight", "embed_out.weight",
    )  # fmt: skip
    _norm_names = ParallelDecoder._norm_names

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "max_position_embeddings": 2048,
            "use_parallel_residual": True,
            "attention_bias": True,
            "hidden_act": "gelu",
            **raw,
            "rope_theta": raw.get("rotary_emb_base", 10000),
            "partial_rotary_factor": raw.get("rotary_pct", 0.25),
            "rms_norm_eps": raw.get("layer_norm_eps", 1e-5),
            "mlp_bias": True,
        }

    def _head_name(self) -> str:
        return "embed_out" if self._source.has("embed_out.weight") else super()._head_name()
