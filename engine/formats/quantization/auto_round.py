"""AutoRound (Cheng et al. 2023) in the layouts of GPTQ and AWQ; extra_config gives some linears bits of their own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ....kernels.ops import QuantizedWeight
from ...errors import ConfigError
from ..checkpoint_format import CheckpointFormat, LinearTensors
from . import awq, gptq
from .affine import one_of
from .targets import Targets, targets

_LAYOUTS = {"auto_round:auto_gptq": gptq, "auto_round:gptqmodel": gptq, "auto_gptq": gptq, "auto_round:auto_awq": awq,
            "auto_awq": awq}  # fmt: skip


@dataclass(frozen=True)
class AutoRound:
    """Format of the linears, and others for some linears."""

    default: CheckpointFormat
    others: tuple[tuple[Targets, CheckpointFormat], ...]

    @property
    def name(self) -> str:
        return f"AutoRound as {self.default.name}"

    def weight(self, linear: LinearTensors, shape: tuple[int, int]) -> QuantizedWeight | None:
        names = max(self.others, key=lambda other: other[0].rank(linear.name), default=None)
        is_other = names is not None and names[0].rank(linear.name) > 0
        return (names[1] if names is not None and is_other else self.default).weight(linear, shape)

    def ignores(self, name: str, take: Callable[[str], Tensor]) -> bool:
        return self.default.ignores(name, take)


def parse(fields: Mapping[str, Any]) -> AutoRound:
    """Read the format from quantization_config. Raises ConfigError."""
    layout = _LAYOUTS[one_of(fields, "packing_format", tuple(_LAYOUTS), "auto_round:auto_gptq")]
    extra = fields.get("extra_config") or {}
    if not isinstance(extra, dict) or not all(isinstance(others, dict) for others in extra.values()):
        raise ConfigError("extra_config must be an object of objects; fetch config.json again")
    known = {name: fields[name] for name in ("bits", "group_size", "sym") if name in fields}
    others = [
        # Linears of 16 bits have no qweight, so any format leaves them.
        (targets([name if name.replace(".", "").replace("_", "").isalnum() else f"re:{name}"], where="extra_config"),
         layout.parse({**known, **other}))
        for name, other in extra.items() if other.get("bits", 16) < 16
    ]  # fmt: skip
    return AutoRound(layout.parse(known), tuple(others))
