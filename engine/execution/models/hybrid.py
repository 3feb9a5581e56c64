"""HybridDecoder: base of families that keep a recurrent state in some layers and keys and values in the others."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ....kernels import ops
from ...errors import ConfigError
from ...formats.json_file import positive_int
from .config import ModelConfig
from .decoder import Decoder
from .layer_states import CompositeState, LayerState, NoState, PagedKV, RecurrentState

_OLD_KINDS = {"mamba": "linear_attention", "attention": "full_attention"}


class HybridDecoder(Decoder):
    """Decoder whose normalized fields have `layer_kinds`, one for each layer."""

    @classmethod
    def layer_states(cls, config: ModelConfig) -> tuple[LayerState, ...]:
        paged, recurrent = super().layer_states(config)[0], cls.recurrent_state(config.hf_config)
        states: dict[str, LayerState] = {"full_attention": paged, "linear_attention": recurrent}
        if isinstance(paged, PagedKV):
            states["hybrid"] = CompositeState((paged, recurrent))
        return tuple(states.get(kind, NoState()) for kind in config.hf_config["layer_kinds"])

    @classmethod
    @abstractmethod
    def recurrent_state(cls, fields: Mapping[str, Any]) -> RecurrentState:
        """Return what a recurrent part keeps. Raises ConfigError."""

    def _load_attention(self, index: int) -> Any:
        if self.config.hf_config["layer_kinds"][index] == "full_attention":
            return super()._load_attention(index)
        return self._load_recurrent(index)

    @abstractmethod
    def _load_recurrent(self, index: int) -> Callable[..., Tensor]:
        """Return the part of a layer that keeps a state, in place of its attention."""

    def _take_conv(self, name: str, num_channels: int, width: int) -> Tensor:
        """Return the weight of a layer's convolution as the ops take it, [width, num_channels] float32."""
        return self._take(f"{name}.conv1d.weight", num_channels, 1, width).squeeze(1).T.float().contiguous()


def with_layer_kinds(
    fields: Mapping[str, Any], known: Sequence[str], default: Callable[[int], str] | None = None
) -> dict[str, Any]:
    """Return the fields with `layer_kinds` from layer_types, or from `default` if there is none.

    Raises ConfigError for a kind that is not known.
    """
    num_layers, kinds = positive_int(fields, "num_hidden_layers"), fields.get("layer_types")
    if not kinds and default is not None:
        kinds = [default(layer) for layer in range(num_layers)]
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise ConfigError(f"layer_types must have {num_layers} entries, one for each layer")
    kinds = [_OLD_KINDS.get(kind, kind) for kind in kinds]
    if unknown := [kind for kind in kinds if kind not in known]:
        raise ConfigError(f"layer_types: {unknown[0]!r} is not known; known: {', '.join(known)}")
    return {**fields, "layer_kinds": kinds, "layer_types": None}


def check_values(fields: Mapping[str, Any], **built: Any) -> None:
    """Raise ConfigError if a field is present with a value that is not built; a tuple lists several built values."""
    for name, values in built.items():
        known = values if isinstance(values, tuple) else (values,)
        if name in fields and fields[name] not in known:
            raise ConfigError(f"{name} {fields[name]!r} is not built; built: {', '.join(map(str, known))}")


def in_order(weight: Tensor | ops.QuantizedWeight, order: Tensor) -> Tensor | ops.QuantizedWeight:
    """Return the weight with its rows in this order."""
    return weight[order] if isinstance(weight, Tensor) else weight.rows(order)  # on meta, `serve` has no index_select


def scaled(weight: Tensor | ops.QuantizedWeight, factors: Tensor) -> Tensor | ops.QuantizedWeight:
    """Return the weight [N, K] with its rows multiplied by these factors [N], or [1] for all."""
    if isinstance(weight, Tensor):
        return (weight.float() * factors[:, None]).to(weight.dtype)
    names = ("scales", "offsets") if weight.super_scales is None else ("super_scales", "super_offsets")
    parts = {name: part.float() * factors for name in names if (part := getattr(weight, name)) is not None}
    return weight._replace(**parts)
