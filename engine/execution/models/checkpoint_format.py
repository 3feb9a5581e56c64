"""What a format of quantized checkpoints is to a weight source. Knows no format and no file."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ...errors import ConfigError

if TYPE_CHECKING:  # read_model_config is called where there is no torch
    from torch import Tensor, dtype

    from ....kernels.ops import QuantizedWeight


@dataclass(frozen=True, slots=True)
class LinearTensors:
    """The tensors of one linear, as the files have them."""

    name: str  # model.layers.0.mlp.down_proj
    has_tensor: Callable[[str], bool]
    take_tensor: Callable[[str], "Tensor"]  # by its whole name; raises ConfigError if it is missing

    def has(self, part: str) -> bool:
        """Whether there is `NAME.part`."""
        return self.has_tensor(f"{self.name}.{part}")

    def take(self, part: str, *shapes: tuple[int, ...], dtypes: tuple["dtype", ...]) -> "Tensor":
        """`NAME.part`, which has one of these shapes and dtypes. Raises ConfigError."""
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
    """A quantization_config that was understood."""

    @property
    def name(self) -> str:
        """What it is, for people: "AWQ, 4 bits in groups of 128"."""

    def weight(self, linear: LinearTensors, shape: tuple[int, int]) -> "QuantizedWeight | None":
        """The weight [N, K] of this linear; None where the files have it unquantized. Raises ConfigError."""

    def ignores(self, name: str, take: Callable[[str], "Tensor"]) -> bool:
        """Whether a tensor that was not read may stay so."""
