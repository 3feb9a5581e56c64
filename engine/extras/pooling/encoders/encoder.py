"""Encoder, base of all encoders: attention over the whole row, which the row's own step has put in the cache.

All layers share the memory of one layer: keys and values are read right after they are written.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from ....errors import ConfigError
from ....execution.models.decoder import Decoder, Layer
from ....execution.models.forward_inputs import Inputs, select
from ....execution.models.layer_norm_decoder import LayerNormDecoder
from ....execution.models.layers import Attention, NoNorm, Norm
from ..families import NoHead

_ALL = 2**30  # kernels count positions in int32


class Bidirectional(NoHead, Decoder):
    """Model whose tokens see their whole row, in a layer with a window as far ahead as behind."""

    pooling_type = "CLS"  # where the folder says nothing

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return {"is_encoder_only": True, **super().normalize_config(raw)}

    def _load(self) -> None:
        if not self._parallel.is_whole:
            raise ConfigError("--tensor-parallel-size is not built for encoders; leave it out")
        super()._load()
        self.pooling_type = self.config.hf_config.get("pooling_type") or self.pooling_type  # a GGUF's

    def _load_attention(self, index: int) -> Attention:
        attention, window = super()._load_attention(index), self.config.sliding_windows[index]
        return replace(attention, args=attention.args._replace(lookahead=window - 1 if window else _ALL))


class Encoder(Bidirectional, LayerNormDecoder):
    """LayerNorm after attention and after the MLP, like BERT."""

    partial_rotary = True

    def _load_norm(self, name: str) -> Norm:
        return NoNorm() if name == f"{self._prefix}{self.names.norm}" else super()._load_norm(name)

    def _run_layer(
        self, layer: Layer, x: Tensor, residual: Tensor | None, inputs: Inputs, cache: Any, kept: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        x, _ = layer.attention_norm.add(*select(kept, layer.attention(x, inputs, cache), x))
        x, _ = layer.mlp_norm.add(layer.mlp(x), x)
        return x, None
