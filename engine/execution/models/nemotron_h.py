"""Nemotron-H (NVIDIA 2025): a layer is a state space, attention without positions, an MLP or a mixture of experts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ....kernels import ops
from ...errors import ConfigError
from .checkpoint import positive_int
from .hybrid import check_values, with_layer_kinds
from .layers import ACTIVATIONS, MLP, activation
from .mixer_decoder import MixerDecoder, Stateless
from .moe import ExpertsConfig

_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_DEFAULTS = {
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "head_dim": 128,
    "intermediate_size": 21504,
    "mlp_hidden_act": "relu2",
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 4096,
    "norm_topk_prob": True,
}


@dataclass(frozen=True, slots=True)
class UngatedExperts:
    """Mixture of MLPs of two matrices, one expert after the other, beside an MLP for every token."""

    router: Any
    routing: ops.RouteArgs
    experts: Sequence[MLP]
    shared: MLP
    latent: tuple[Any, Any] | None = None  # matrices before and after the experts, which are narrower than the model

    def __call__(self, x: Tensor) -> Tensor:
        weights, expert_ids = ops.route(ops.linear(x, self.router), self.routing)
        inner = x if self.latent is None else ops.linear(x, self.latent[0])
        total = torch.zeros_like(inner, dtype=torch.float32)
        for expert in sorted(set(expert_ids.flatten().tolist())):
            tokens, places = (expert_ids == expert).nonzero(as_tuple=True)
            out = self.experts[expert](inner[tokens])
            total.index_add_(0, tokens, out.float() * weights[tokens, places, None])
        routed = total.to(x.dtype)
        return (routed if self.latent is None else ops.linear(routed, self.latent[1])) + self.shared(x)


class NemotronHForCausalLM(MixerDecoder):
    """MixerDecoder with MLPs and mixtures around relu(x)²."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = {**_DEFAULTS, **raw}
        kinds = fields.get("layers_block_type") or fields.get("layer_types") or _kinds(fields)
        # NVIDIA's code and transformers' decoding have no lower limit of a time step but that of time_step_limit.
        fields |= {
            "layer_types": kinds,
            "num_hidden_layers": len(kinds),
            "rms_norm_eps": fields["layer_norm_epsilon"],
            "hidden_act": fields["mlp_hidden_act"],
            "mamba_n_heads": fields["mamba_num_heads"],
            "mamba_d_head": fields["mamba_head_dim"],
            "mamba_d_ssm": fields["mamba_num_heads"] * fields["mamba_head_dim"],
            "mamba_n_groups": fields["n_groups"],
            "mamba_d_state": fields["ssm_state_size"],
            "mamba_d_conv": fields["conv_kernel"],
            "mamba_conv_bias": fields.get("use_conv_bias", True),
            "mamba_proj_bias": fields.get("use_bias", False),
            "partial_rotary_factor": 0.0,
            "rope_parameters": None,
            "rope_scaling": None,
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
            self._linear([(f"{name}.up_proj", inner)], width, bias=bias),
            activation(self.config.hidden_act, ACTIVATIONS),
            self._linear([(f"{name}.down_proj", width)], inner, bias=bias),
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
            experts=[
                self._load_ungated(f"{name}.experts.{expert}", config.intermediate_size, width)
                for expert in range(config.num_experts)
            ],
            shared=self._load_ungated(
                f"{name}.shared_experts", positive_int(fields, "moe_shared_expert_intermediate_size")
            ),
            latent=latent,
        )


def _kinds(fields: Mapping[str, Any]) -> list[str]:
    """Return each layer's kind from a pattern of letters. Raises ConfigError."""
    pattern = fields.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or not pattern or set(pattern) - _LETTERS.keys():
        raise ConfigError(f"hybrid_override_pattern {pattern!r} must be made of {' '.join(_LETTERS)}")
    return [_LETTERS[letter] for letter in pattern]
