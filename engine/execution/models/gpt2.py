"""GPT-2 (Radford et al. 2019): learned positions, LayerNorm, GELU, matrices stored as [in, out]."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from ....kernels import ops
from ...errors import ConfigError
from .decoder import WeightNames
from .forward_inputs import Inputs
from .layer_norm_decoder import LayerNormDecoder
from .layers import Attention


class GPT2LMHeadModel(LayerNormDecoder):
    """LayerNormDecoder with biases everywhere; the checkpoint has q, k and v in one matrix."""

    partial_rotary = True
    names = WeightNames(
        prefix="transformer.", embed="wte", norm="ln_f", layers="h", attention_norm="ln_1", attention="attn",
        o_proj="c_proj", mlp_norm="ln_2",
    )  # fmt: skip
    mlp_names = ("mlp.c_fc", "mlp.c_proj")
    ignored = (".attn.bias", ".attn.masked_bias", "lm_head.weight")  # the first two are causal masks

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        if raw.get("add_cross_attention"):
            raise ConfigError("add_cross_attention: there is no encoder here")
        return {**raw, "intermediate_size": raw.get("n_inner") or 4 * raw["n_embd"]}

    def _load(self) -> None:
        super()._load()
        config = self.config
        shape = (config.max_position_embeddings, config.hidden_size)
        self._embed_positions = self._take(f"{self._prefix}wpe.weight", *shape)

    def _embed(self, inputs: Inputs) -> Tensor:
        return super()._embed(inputs).add_(self._embed_positions[inputs.positions])

    def _load_qkv(self, name: str) -> Any:
        hidden = self.config.hidden_size
        return self._linear([(f"{name}.c_attn", 3 * hidden)], hidden, bias=True, rows=self._qkv_rows)

    def _load_attention(self, index: int) -> Attention:
        fields = self.config.hf_config
        attention = super()._load_attention(index)
        scale = attention.args.scale if fields.get("scale_attn_weights", True) else 1.0
        if fields.get("scale_attn_by_inverse_layer_idx"):
            scale /= index + 1
        return replace(attention, args=attention.args._replace(scale=scale))

    def _take_weight(self, name: str, *shape: int) -> Tensor | ops.QuantizedWeight:
        if not name.startswith(f"{self._prefix}{self.names.layers}."):  # embedding and head are stored as [out, in]
            return super()._take_weight(name, *shape)
        num_outputs, num_inputs = shape
        quantized = self._source.take_quantized(name, shape)
        return self._take(name, num_inputs, num_outputs).T if quantized is None else quantized.to(self._device)
