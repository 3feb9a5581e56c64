"""Phi-3 to Phi-4, dense and with mixtures of experts."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ....kernels import ops
from ...errors import ConfigError
from ...formats.json_file import positive_number
from .decoder import Decoder
from .hybrid import check_values
from .layer_norm_decoder import LayerNormDecoder
from .moe import ExpertsConfig, SparseDecoder


class Phi3ForCausalLM(Decoder):
    """Phi-3, Phi-3.5 and Phi-4 (Abdin et al. 2024): one matrix for q, k and v, one for gate and up, partial rotation.

    The long versions have two sets of rope factors (longrope). Here max_model_len chooses one for good; transformers
    switches when a sequence outgrows the original length, and recomputes all of its keys.
    """

    partial_rotary = True
    has_one_gate_up = True

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config(raw)
        scaling = dict(fields.get("rope_scaling") or fields.get("rope_parameters") or {})
        # The first checkpoints' names for longrope.
        if (scaling.get("rope_type") or scaling.get("type")) in ("su", "yarn"):
            fields["rope_scaling"] = {**scaling, "rope_type": "longrope"}
        return fields

    def _load_qkv(self, name: str) -> Any:
        config = self.config
        rows = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        return self._linear([(f"{name}.qkv_proj", rows)], config.hidden_size, bias=False, rows=self._qkv_rows)


class PhimoeForCausalLM(LayerNormDecoder, SparseDecoder):
    """Phi-3.5-MoE (Microsoft 2024): a mixture with LayerNorms and biases, routed by SparseMixer (Liu et al. 2024).

    SparseDecoder under Mixtral's names.
    """

    mlp_names = None
    sparse_block = "block_sparse_moe"
    expert_names = ("w1", "w3", "w2")

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = dict(raw)
        check_values(fields, num_experts_per_tok=2)
        scaling = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
        if "long_mscale" in scaling:
            if scaling["long_mscale"] != scaling.get("short_mscale"):
                raise ConfigError("short_mscale and long_mscale differ, which is not built")
            fields["rope_scaling"] = {**scaling, "attention_factor": scaling["long_mscale"]}
        return super().normalize_config(fields)

    def _load_routing(self, block: str, config: ExpertsConfig) -> ops.RouteArgs:
        jitter = positive_number(self.config.hf_config, "router_jitter_noise")
        return super()._load_routing(block, config)._replace(jitter=jitter)

    def _pack_head(self, weight: Any) -> Any:
        if not self.config.hf_config.get("lm_head_bias"):
            return super()._pack_head(weight)
        vocab_size = self.config.vocab_size
        bias = self._take(f"{self._head_name()}.bias", vocab_size)[self._parallel.vocabulary(vocab_size)]
        if isinstance(weight, Tensor):
            return ops.pack_linear(weight, bias, bits=max(8, self._weight_bits), input_bits=self._head_inputs)
        return ops.pack_quantized([weight], bias, dtype=self._dtype, input_bits=self._head_inputs)
