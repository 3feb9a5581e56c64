"""Sources of weights for updates: named tensors of a trainer, and a check that weights are finite."""

from collections.abc import Iterable

import torch
from torch import Tensor

from ....kernels.ops import QuantizedWeight
from ...errors import ConfigError
from ...formats.weights import WeightSource


class TensorSource:
    """WeightSource of named tensors, by checkpoint name. Tensors that are taken are copies."""

    def __init__(self, tensors: Iterable[tuple[str, Tensor]], *, dtype: torch.dtype) -> None:
        self.tensors = dict(tensors)
        self._dtype = dtype
        self._taken: set[str] = set()

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ConfigError(f"no tensor {name!r} in the update; give all weights, by their checkpoint names")
        if tuple(tensor.shape) != shape:
            raise ConfigError(f"{name} has shape {list(tensor.shape)}, but the served model needs {list(shape)}")
        if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
            raise ConfigError(f"{name} is {tensor.dtype}; give float32, bfloat16 or float16")
        self._taken.add(name)
        return tensor.detach().to("cpu", self._dtype, copy=True)

    def take_quantized(self, name: str, shape: tuple[int, ...]) -> QuantizedWeight | None:
        return None

    def has(self, name: str) -> bool:
        return name in self.tensors

    def unread(self) -> list[str]:
        return sorted(self.tensors.keys() - self._taken)


class FiniteSource:
    """WeightSource that refuses values that are not finite. Packed values are finite if their scales are."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self.has, self.unread = source.has, source.unread

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._source.take(name, shape)
        if not tensor.isfinite().all():
            raise ConfigError(f"{name} has values that are not finite (NaN or infinity), so the update is refused")
        return tensor

    def take_quantized(self, name: str, shape: tuple[int, ...]) -> QuantizedWeight | None:
        return self._source.take_quantized(name, shape)
