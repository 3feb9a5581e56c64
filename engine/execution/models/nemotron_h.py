"""Nemotron-H (NVIDIA 2025): a layer is a state space, attention without positions, an MLP or a mixture of experts."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ....kernels import ops
from ...errors import ConfigError
from ...formats.json_file import positive_int
from .hybrid import check_values, with_layer_kinds
from .layers import ACTIVATIONS, MLP, activation
from .mamba2 import MixerDecoder, Stateless
from .moe import ExpertsConfig

_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}


@dataclass(frozen=True, slots=True)
class UngatedExperts:
    """Mixture of MLPs of two matrices beside an MLP for every token."""

    router: Any
    routing: ops.RouteArgs
    experts: Any  # packed by `ops.pack_experts`; a list of MLPs, one for each expert, where that is not built
    shared: MLP
    latent: tuple[Any, Any] | None = None  # matrices before and after the experts, which are narrower than the model

    def __call__(self, x: Tensor) -> Tensor:
        weights, expert_ids = ops.route(ops.linear(x, self.router), self.routing)
        inner = x if self.latent is None else ops.linear(x, self.latent[0])
        if isinstance(self.experts, list):
            routed = self._one_by_one(inner, weights, expert_ids)
        else:
            routed = ops.experts(inner, weights, expert_ids, self.experts)
        return (routed if self.latent is None else ops.linear(routed, self.latent[1])) + self.shared(x)

    def _one_by_one(self, x: Tensor, weights: Tensor, expert_ids: Tensor) -> Tensor:
        total = torch.zeros_like(x, dtype=torch.float32)
        for expert in sorted(set(expert_ids.flatten().tolist())):
            tokens, places = (expert_ids == expert).nonzero(as_tuple=True)
            total.index_add_(0, tokens, self.experts[expert](x[tokens]).float() * weights[tokens, places, None])
        return total.to(x.dtype)


class NemotronHForCausalLM(MixerDecoder):
    """MixerDecoder with MLPs and mixtures around relu(x)²."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = dict(raw)
        kinds = fields.get("layers_block_type") or fields.get("layer_types") or _kinds(fields)
        # NVIDIA's code and transformers' decoding limit a time step from below by time_step_limit alone.
        fields |= {
            "layer_types": kinds,
            "num_hidden_layers": len(kinds),
            "mamba_d_ssm": fields["mamba_num_heads"] * fields["mamba_head_dim"],
        }
        check_values(fields, sliding_window=None, attention_bias=False, mamba_hidden_act="silu")
        fields = with_layer_kinds(fields, [*_LETTERS.values()])
        if "moe" in fields["layer_kinds"]:
            fields["num_experts"] = fields.get("n_routed_experts")
            fields["experts"] = ExpertsConfig.from_fields(fields)
        return super().normalize_config(fields)

    def _is_ignored(self, name: str) -> bool:
        """True of the layers that predict more than one token, too."""
        return super()._is_ignored(name) or name.startswith("mtp.")

    def _load_attention(self, index: int) -> Any:
        match self.config.hf_config["layer_kinds"][index]:
            case "mlp":
                return Stateless(self._load_ungated(self._mixer_name(index), self.config.intermediate_size))
            case "moe":
                return Stateless(self._load_experts(self._mixer_name(index), self.config.hf_config["experts"]))
        return super()._load_attention(index)

    def _mixer_name(self, index: int) -> str:
        return f"{self._layer_name(index)}.mixer"

    def _load_ungated(self, name: str, inner: int, width: int | None = None) -> MLP:
        width, bias = width or self.config.hidden_size, self.config.mlp_bias
        return MLP(
            self._linear([(f"{name}.up_proj", inner)], width, bias=bias, is_robust=True),
            activation(self.config.hidden_act, ACTIVATIONS),
            self._linear([(f"{name}.down_proj", width)], inner, bias=bias, is_robust=True),
        )

    def _load_experts(self, name: str, config: ExpertsConfig) -> UngatedExperts:
        fields, hidden = self.config.hf_config, self.config.hidden_size
        width = fields.get("moe_latent_size") or hidden
        bias = self._take(f"{name}.gate.e_score_correction_bias", config.num_experts).float()
        linear, latent = partial(self._linear, bias=self.config.mlp_bias), None
        if width != hidden:
            latent = (
                linear([(f"{name}.fc1_latent_proj", width)], hidden),
                linear([(f"{name}.fc2_latent_proj", hidden)], width),
            )
        return UngatedExperts(
            router=self._linear([(f"{name}.gate", config.num_experts)], hidden, bias=False),
            routing=ops.RouteArgs(
                top_k=config.num_experts_per_tok,
                renormalize=config.norm_topk_prob,
                is_sigmoid=True,
                bias=bias,
                num_groups=config.num_groups,
                num_kept_groups=config.num_kept_groups,
                scale=config.scale,
            ),
            experts=self._load_mixture(f"{name}.experts", config, width),
            shared=self._load_ungated(
                f"{name}.shared_experts", positive_int(fields, "moe_shared_expert_intermediate_size")
            ),
            latent=latent,
        )

    def _load_mixture(self, name: str, config: ExpertsConfig, width: int) -> Any:
        inner = config.intermediate_size
        if self._device.type != "cpu":
            return [self._load_ungated(f"{name}.{expert}", inner, width) for expert in range(config.num_experts)]

        def bias(matrix: str, num_outputs: int) -> Tensor | None:
            return self._take(f"{matrix}.bias", num_outputs) if self.config.mlp_bias else None

        def of(expert: str) -> ops.ExpertWeights:
            up, down = f"{expert}.up_proj", f"{expert}.down_proj"
            weights = self._take_weight(f"{up}.weight", inner, width), self._take_weight(f"{down}.weight", width, inner)
            return ops.ExpertWeights([weights[0]], weights[1], bias(up, inner), bias(down, width))

        return ops.pack_experts(
            (of(f"{name}.{expert}") for expert in range(config.num_experts)),
            num_experts=config.num_experts,
            dtype=self._dtype,
            device=self._device,
            bits=self._weight_bits,
            input_bits=self._input_bits[True],
            is_fp8=self._has_fp8_weights,
            args=ops.ExpertArgs(is_gated=False),
        )


def _kinds(fields: Mapping[str, Any]) -> list[str]:
    """Return each layer's kind from a pattern of letters. Raises ConfigError."""
    pattern = fields.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or not pattern or set(pattern) - _LETTERS.keys():
        raise ConfigError(f"hybrid_override_pattern {pattern!r} must be made of {' '.join(_LETTERS)}")
    return [_LETTERS[letter] for letter in pattern]
