"""Kimi Linear (Kimi Team 2025, arXiv 2510.26692): a delta rule whose decay differs by channel, in three layers of four.

The fourth has latent attention without positions. Mixtures are DeepSeek-V3's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....kernels import ops
from ...errors import ConfigError
from ...formats.json_file import positive_int
from .forward_inputs import Inputs
from .hybrid import HybridDecoder, check_values, with_layer_kinds
from .latent_decoder import LatentDecoder
from .layer_states import RecurrentState
from .layers import MLP

_WIDTH = "linear_conv_kernel_dim"
_KINDS = ("linear_attention", "full_attention")
_NAMES = {  # other families' names of config.json's fields
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts": "num_local_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}
_DELTA_NAMES = {  # fields of linear_attn_config, as transformers names them beside the others
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": _WIDTH,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDelta:
    """Delta rule between two projections. Decays and output gates come from products of two small matrices."""

    num_heads: int
    head_dim: int
    qkv_proj: Any
    conv_weight: Tensor  # [width, 3 · num_heads · head_dim] float32
    gates_down: Any  # beta of each head, and the decays' first factor
    gates_up: Any  # beta of each head, and a decay of each channel
    a_log: Tensor  # [num_heads] float32
    dt_bias: Tensor  # [num_heads · head_dim] float32
    output_gate: tuple[Any, Any]
    norm_weight: Tensor  # [head_dim]
    eps: float
    o_proj: Any

    def __call__(self, x: Tensor, inputs: Inputs, view: ops.StateView) -> Tensor:
        assert inputs.states is not None
        heads, size = self.num_heads, self.head_dim
        out = ops.gated_delta(
            ops.linear(x, self.qkv_proj), ops.linear(ops.linear(x, self.gates_down), self.gates_up), self.conv_weight,
            self.a_log, self.dt_bias, view, inputs.ragged, inputs.states, num_k_heads=heads, head_k_dim=size,
            num_v_heads=heads, head_v_dim=size,
        )  # fmt: skip
        down, up = self.output_gate
        gate = ops.linear(ops.linear(x, down), up)
        out = ops.gated_rms_norm(
            out.flatten(1),
            gate,
            self.norm_weight,
            eps=self.eps,
            group_size=size,
            norm_before_gate=True,
            is_sigmoid=True,
        )
        return ops.linear(out, self.o_proj)


class KimiLinearForCausalLM(HybridDecoder, LatentDecoder):
    """LatentDecoder with delta rules in most layers."""

    sparse_block = "block_sparse_moe"
    expert_names = ("w1", "w3", "w2")

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        delta = raw.get("linear_attn_config") or {}
        fields = {_NAMES.get(name, name): value for name, value in raw.items()}
        fields |= {_DELTA_NAMES[name]: value for name, value in delta.items() if name in _DELTA_NAMES}
        if "full_attn_layers" in delta:
            fields["layer_types"] = _layer_types(delta, positive_int(fields, "num_hidden_layers"))
        fields = with_layer_kinds(fields, _KINDS, lambda layer: _KINDS[layer > 0 and layer % 4 == 0])
        check_values(
            fields,
            hidden_act=("silu", "swish"),
            mla_use_nope=True,
            moe_layer_freq=1,
            moe_router_activation_func="sigmoid",
        )
        unturned = {"rope_type": "proportional", "partial_rotary_factor": 0.0}
        positions = {"rope_parameters": unturned, "rope_scaling": None, "rope_interleave": False}
        return super().normalize_config({**fields, **positions})

    @classmethod
    def recurrent_state(cls, fields: Mapping[str, Any]) -> RecurrentState:
        heads, size, width = (positive_int(fields, name) for name in ("linear_num_heads", "linear_head_dim", _WIDTH))
        return RecurrentState(3 * heads * size, width, (heads, size, size), num_gates=heads * (1 + size))

    def _load_gated_mlp(self, mlp: str, inner: int) -> MLP:
        saved = mlp.replace(f".{self.names.mlp}", f".{self.sparse_block}")  # by transformers, in plain layers too
        return super()._load_gated_mlp(saved if self._source.has(f"{saved}.gate_proj.weight") else mlp, inner)

    def _load_recurrent(self, index: int) -> KimiDelta:
        fields, hidden, name = self.config.hf_config, self.config.hidden_size, f"{self._layer_name(index)}.self_attn"
        heads, size, width = fields["linear_num_heads"], fields["linear_head_dim"], fields[_WIDTH]
        inner = heads * size
        convs = [self._take(f"{name}.{part}_conv1d.weight", inner, 1, width).squeeze(1) for part in "qkv"]
        down, up = self._load_gates(name, heads, size)
        return KimiDelta(
            num_heads=heads,
            head_dim=size,
            qkv_proj=self._linear([(f"{name}.{part}_proj", inner) for part in "qkv"], hidden, bias=False),
            conv_weight=torch.cat(convs).T.float().contiguous(),
            gates_down=down,
            gates_up=up,
            a_log=self._take(f"{name}.A_log", 1, 1, heads, 1).float().flatten(),
            dt_bias=self._take(f"{name}.dt_bias", inner).float(),
            output_gate=(
                self._linear([(f"{name}.g_a_proj", size)], hidden, bias=False),
                self._linear([(f"{name}.g_b_proj", inner)], size, bias=False),
            ),
            norm_weight=self._take(f"{name}.o_norm.weight", size),
            eps=self.config.norm_eps,
            o_proj=self._linear([(f"{name}.o_proj", hidden)], inner, bias=False),
        )

    def _load_gates(self, name: str, heads: int, size: int) -> tuple[Any, Any]:
        """Return both factors of beta and decays, unrounded: errors of a decay add up over all tokens.

        The second factor hands beta through, 1 · b, so that one matrix has all gates side by side.
        """
        shapes = {
            "b": (heads, self.config.hidden_size),
            "f_a": (size, self.config.hidden_size),
            "f_b": (heads * size, size),
        }
        b, first, second = (
            self._plain(self._take_weight(f"{name}.{part}_proj.weight", *shape)) for part, shape in shapes.items()
        )
        up = second.new_zeros(heads + len(second), heads + size)
        up[:heads, :heads].fill_diagonal_(1.0)
        up[heads:, heads:] = second
        return ops.pack_linear(torch.cat((b, first))), ops.pack_linear(up)


def _layer_types(delta: Mapping[str, Any], num_layers: int) -> list[str]:
    """Return the kinds of layers that linear_attn_config counts from 1. Raises ConfigError."""
    full, others = set(delta["full_attn_layers"]), set(delta.get("kda_layers") or ())
    every = set(range(1, num_layers + 1))
    if full | (others or every - full) != every or full & others:
        raise ConfigError(f"linear_attn_config: full_attn_layers and kda_layers must be the layers 1 to {num_layers}")
    return [_KINDS[layer in full] for layer in range(1, num_layers + 1)]
