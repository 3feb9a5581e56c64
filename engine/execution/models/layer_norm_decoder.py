"""LayerNormDecoder, base of the families before Llama and some later ones: LayerNorm, mostly an MLP without a gate.

ParallelDecoder: attention and MLP side by side, reading one residual stream (Wang & Komatsuzaki 2021, GPT-J).
"""

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor

from .decoder import Decoder, Layer
from .forward_inputs import Inputs, select
from .layers import ACTIVATIONS, MLP, LayerNorm, Norm, activation


class LayerNormDecoder(Decoder):
    """Decoder with LayerNorm (mean and bias) and an MLP of two matrices, up and down."""

    mlp_names: ClassVar[tuple[str, str] | None]  # up and down, within a layer; None: Llama's MLP with a gate

    def _load_norm(self, name: str) -> Norm:
        size = self.config.hidden_size
        return LayerNorm(self._take(f"{name}.weight", size), self._take(f"{name}.bias", size), self.config.norm_eps)

    def _load_mlp(self, index: int) -> Callable[[Tensor], Tensor]:
        if self.mlp_names is None:
            return super()._load_mlp(index)
        hidden, inner, bias = self.config.hidden_size, self.config.intermediate_size, self.config.mlp_bias
        up, down = (f"{self._layer_name(index)}.{name}" for name in self.mlp_names)
        return MLP(
            self._linear([(up, inner)], hidden, bias=bias, rows=[self._parallel.share(inner)], is_robust=True),
            activation(self.config.hidden_act, ACTIVATIONS),
            self._row_parallel_linear(down, hidden, inner, bias=bias, is_robust=True),
        )


class Starcoder2ForCausalLM(LayerNormDecoder):
    """StarCoder 2 (Lozhkov et al. 2024): a Mistral with LayerNorm, biases, and an MLP without a gate.

    LayerNormDecoder in which every layer has the window, if config.json states one.
    """

    mlp_names = ("mlp.c_fc", "mlp.c_proj")


class ParallelDecoder(LayerNormDecoder):
    """Decoder whose parts run side by side if the normalized config has `use_parallel_residual`, else in sequence."""

    def _load(self) -> None:
        self._is_parallel = bool(self.config.hf_config["use_parallel_residual"])
        super()._load()

    def _norm_names(self) -> tuple[str, str]:
        """Return a layer's names of the norms before attention and before the MLP; equal if both share one norm."""
        return self.names.attention_norm, self.names.mlp_norm

    def _load_layer(self, index: int) -> Layer:
        layer, (first, second) = self._layer_name(index), self._norm_names()
        norm = self._load_norm(f"{layer}.{first}")
        mlp_norm = norm if second == first else self._load_norm(f"{layer}.{second}")
        return Layer(norm, self._load_attention(index), mlp_norm, self._load_mlp(index))

    def _run_layer(
        self, layer: Layer, x: Tensor, residual: Tensor | None, inputs: Inputs, cache: Any, kept: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        if not self._is_parallel:
            return super()._run_layer(layer, x, residual, inputs, cache, kept)
        x, residual = layer.attention_norm.add(x, residual)
        mlp_x = x if layer.mlp_norm is layer.attention_norm else layer.mlp_norm(residual)
        mlp_x, residual = select(kept, mlp_x, residual)
        return layer.mlp(mlp_x) + select(kept, layer.attention(x, inputs, cache), None)[0], residual
