"""CheckpointFormat: interface of a format of quantized checkpoints for weight sources. Knows no format and no file."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..errors import ConfigError

if TYPE_CHECKING:  # read_model_config is called where there is no torch
    from torch import Tensor, dtype

    from ...kernels.ops import QuantizedWeight


@dataclass(frozen=True, slots=True)
class LinearTensors:
    """Tensors of one linear layer in the files."""

    name: str  # for example model.layers.0.mlp.down_proj
    has_tensor: Callable[[str], bool]
    take_tensor: Callable[[str], "Tensor"]  # takes the tensor's whole name; raises ConfigError if it is missing

    def has(self, part: str) -> bool:
        """True if there is a tensor `NAME.part`."""
        return self.has_tensor(f"{self.name}.{part}")

    def take(self, part: str, *shapes: tuple[int, ...], dtypes: tuple["dtype", ...]) -> "Tensor":
        """Return `NAME.part`. Raises ConfigError if it has none of these shapes or dtypes."""
        tensor = self.take_tensor(f"{self.name}.{part}")
        if tensor.dtype not in dtypes or tuple(tensor.shape) not in shapes:
            needed = f"{_kinds(dtypes)} {' or '.join(str(list(shape)) for shape in shapes)}"
            raise ConfigError(
                f"{self.name}.{part} is {_kinds((tensor.dtype,))} {list(tensor.shape)}, but config.json and its "
                f"quantization_config need {needed}; the files do not belong together"
            )
        return tensor


def _kinds(dtypes: tuple["dtype", ...]) -> str:
    return " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


class CheckpointFormat(Protocol):
    """Format of quantized weights, parsed from a quantization_config."""

    @property
    def name(self) -> str:
        """Name for people: "AWQ, 4 bits in groups of 128"."""

    def weight(self, linear: LinearTensors, shape: tuple[int, int]) -> "QuantizedWeight | None":
        """Return this linear layer's weight [N, K]; None if the files do not quantize it. Raises ConfigError."""

    def ignores(self, name: str, take: Callable[[str], "Tensor"]) -> bool:
        """True if this tensor may stay unread."""
