"""Mamba-2 and Bamba: state spaces; MixerDecoder, base of families with one part in a layer behind one norm."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .decoder import Layer, WeightNames
from .forward_inputs import Inputs, select
from .hybrid import check_values, with_layer_kinds
from .layers import NoNorm
from .mamba2_mixer import MambaDecoder


@dataclass(frozen=True, slots=True)
class Stateless:
    """Part of a layer that keeps nothing, in the place of one that does."""

    part: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor, inputs: Inputs, view: None) -> Tensor:
        return self.part(x)


class MixerDecoder(MambaDecoder):
    """MambaDecoder without MLPs beside the parts that keep a state."""

    partial_rotary = True
    mixer = "mixer"
    names = WeightNames(
        prefix="backbone.", embed="embeddings", norm="norm_f", attention_norm="norm", attention="mixer", mlp="mixer"
    )

    def _load(self) -> None:
        if self._source.has(f"model.{self.names.embed}.weight"):  # as transformers names them in memory
            self._prefix = "model."
        super()._load()

    def _load_layer(self, index: int) -> Layer:
        norm = self._load_norm(f"{self._layer_name(index)}.{self.names.attention_norm}")
        return Layer(attention_norm=norm, attention=self._load_attention(index), mlp_norm=NoNorm(), mlp=_no_mlp)

    def _run_layer(
        self, layer: Layer, x: Tensor, residual: Tensor | None, inputs: Inputs, cache: Any, kept: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        x, residual = layer.attention_norm.add(x, residual)
        return select(kept, layer.attention(x, inputs, cache), residual)


def _no_mlp(x: Tensor) -> Tensor:
    raise AssertionError("the layer has no MLP")


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
