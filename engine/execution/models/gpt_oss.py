"""gpt-oss (OpenAI 2025): mixtures whose experts have biases and a clamped activation, and attention with sinks."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch

from ....kernels import ops
from ...errors import ConfigError
from ...formats.json_file import positive_number
from .decoder import Decoder
from .layers import Attention
from .moe import ExpertsConfig, SparseDecoder

_ALPHA = 1.702  # the only published one, which the kernels have
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


class SinksDecoder(Decoder):
    """Decoder whose heads have sinks: a learned term in the sum of a softmax, with no value behind it."""

    sink_name: ClassVar[str] = "sinks"  # within attention

    def _load_attention(self, index: int) -> Attention:
        attention, config, rank = super()._load_attention(index), self.config, self._parallel
        stem = f"{self._layer_name(index)}.{self.names.attention}.{self.sink_name}"
        name = stem if self._source.has(stem) else f"{stem}.weight"  # in GGUF files
        sinks = self._take(name, config.num_heads)[rank.share(config.num_heads)].float().contiguous()
        return replace(attention, args=attention.args._replace(sinks=sinks))


class GptOssForCausalLM(SinksDecoder, SparseDecoder):
    """SparseDecoder; every other layer, from the first on, has a window.

    Checkpoints have one tensor for all experts of a layer, gate and up interleaved: plain ones [E, in, out], MXFP4 ones
    (engine/formats/quantization/mxfp4.py) and GGUF files a matrix for each expert and half.
    """

    router_name = "router"
    has_fused_form = False

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = dict(raw)
        if fields["swiglu_alpha"] != _ALPHA:
            raise ConfigError(f"swiglu_alpha {fields['swiglu_alpha']} is not built; no published model has it")
        if not fields.get("rope_parameters") and not fields.get("rope_scaling"):
            fields["rope_scaling"] = _YARN
        return super().normalize_config(fields)

    def _router_bias(self, router: str, num_experts: int) -> Any:
        return self._take(f"{router}.bias", num_experts)

    def _expert_args(self) -> ops.ExpertArgs:
        return ops.ExpertArgs(limit=positive_number(self.config.hf_config, "swiglu_limit"))

    def _experts(self, block: str, config: ExpertsConfig) -> Iterator[ops.ExpertWeights]:
        name, hidden, inner = f"{block}.experts", self.config.hidden_size, config.intermediate_size
        if not self._source.has(f"{name}.gate_up_proj_bias"):  # a GGUF file
            for expert, weights in enumerate(super()._experts(block, config)):
                biases = [self._take(f"{name}.{expert}.{half}_proj.bias", inner) for half in ("gate", "up")]
                down_bias = self._take(f"{name}.{expert}.down_proj.bias", hidden)
                yield weights._replace(gate_up_bias=torch.cat(biases), down_bias=down_bias)
            return
        gate_up_biases = self._take(f"{name}.gate_up_proj_bias", config.num_experts, 2 * inner)
        down_biases = self._take(f"{name}.down_proj_bias", config.num_experts, hidden)
        for weights, gate_up, down in zip(self._matrices(block, config), gate_up_biases, down_biases, strict=True):
            yield weights._replace(gate_up_bias=gate_up.view(-1, 2).T.flatten(), down_bias=down)

    def _matrices(self, block: str, config: ExpertsConfig) -> Iterator[ops.ExpertWeights]:
        if self._source.has(f"{block}.experts.gate_up_proj_blocks"):
            yield from super()._experts(block, config)
            return
        hidden, inner = self.config.hidden_size, config.intermediate_size
        gate_up = self._take(f"{block}.experts.gate_up_proj", config.num_experts, hidden, 2 * inner)
        down = self._take(f"{block}.experts.down_proj", config.num_experts, inner, hidden)
        for first, second in zip(gate_up, down, strict=True):
            yield ops.ExpertWeights([first[:, half::2].T for half in range(2)], second.T)
