"""ParallelDecoder: attention and MLP side by side, reading one residual stream (Wang & Komatsuzaki 2021, GPT-J)."""

from typing import Any

from torch import Tensor

from .decoder import Layer
from .forward_inputs import Inputs, select
from .layer_norm_decoder import LayerNormDecoder


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
