"""Adapted decoders: families whose linears add the products of their rows' adapters.

A family names its linears as it loads them, and so the wrapping follows its own fusions: q, k and v are three parts of
one linear.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ....kernels import ops
from ...errors import ConfigError
from ...execution.models.decoder import Decoder, Layer, Parts
from ...execution.models.forward_inputs import Arrays, Inputs, select
from ...execution.models.gpt2 import GPT2LMHeadModel
from ...execution.models.interleaved_rope import InterleavedRope
from ...execution.models.kv_cache import KVCache
from .matrices import Matrices

if TYPE_CHECKING:
    from ....kernels.ops import AdapterTable

    _Base = Decoder
else:
    _Base = object

# Families whose way of reading a weight is known here; others may reorder or scale its rows.
_KNOWN_READERS = (Decoder, InterleavedRope, GPT2LMHeadModel)

_MAX_PRODUCT = 1e30  # of an adapter's matrices and its scale: float32 ends at 3e38, and inputs may be large


@dataclass(frozen=True, slots=True)
class Part:
    """Checkpoint matrix [out, in] in a linear: its entry in every table."""

    number: int
    num_outputs: int
    num_inputs: int
    order: Tensor | None  # rows of the checkpoint in our order; None: the same


@dataclass(slots=True)
class Step:
    """Adapters of the step that runs."""

    tiles: Tensor | None = None


@dataclass
class LoraTargets:
    """Parts of a model by checkpoint name."""

    prefix: str
    head_dim: int
    device: torch.device
    dtype: torch.dtype
    parts: dict[str, Part] = field(default_factory=dict)
    step: Step = field(default_factory=Step)
    _lock: threading.Lock = field(default_factory=threading.Lock)  # layers load in several threads

    def wrap(self, linear: Any, parts: Sequence[tuple[str, int]], num_inputs: int, order: Any) -> "AdaptedLinear":
        """Name the parts of a linear, and have their adapters' products added."""
        with self._lock:
            first, start, outputs = len(self.parts), 0, []
            for name, size in parts:
                part = Part(len(self.parts), size, num_inputs, order(name, size))
                self.parts[name.removeprefix(self.prefix)] = part
                outputs.append((start, size))
                start += size
        place = ops.AdapterPlace(first, torch.tensor(outputs, device=self.device))
        return AdaptedLinear(linear, place, self.step)

    @cached_property
    def no_adapter(self) -> "AdapterTable":
        """Table that changes nothing, for tiles of padding. Call it once all parts are known."""
        return ops.adapter_table({}, num_parts=len(self.parts), device=self.device)

    def table(self, matrices: Matrices, *, max_rank: int, about: str) -> "AdapterTable":
        """Lay an adapter out for this model. Raises ConfigError if it does not fit."""
        found: dict[int, ops.AdapterPart] = {}
        for name, pair in matrices.pairs.items():
            part = self.parts.get(name.removeprefix(self.prefix))
            if part is None:
                raise ConfigError(
                    f"{about}: adapters cannot change {name} of this model; {self._known_linears()} they can. "
                    "Merge it: peft's merge_and_unload()"
                )
            if (rank := len(pair.a)) > max_rank:
                raise ConfigError(f"{about}: rank {rank} of {name} is more than --max-lora-rank {max_rank}")
            expected, given = (part.num_outputs, part.num_inputs), (len(pair.b), pair.a.shape[1])
            if given != expected:
                raise ConfigError(
                    f"{about}: its {name} is for a matrix {list(given)}, and this model's is {list(expected)}; "
                    "it belongs to another model"
                )
            b = self._separated(pair.b) if pair.interleaves else pair.b
            b = b if part.order is None else b[part.order.cpu()]
            a, b = pair.a.to(self.dtype).contiguous(), b.to(self.dtype).contiguous()
            largest = abs(pair.scale) * rank * part.num_inputs * float(a.abs().max()) * float(b.abs().max())
            if not largest < _MAX_PRODUCT:
                raise ConfigError(f"{about}: the values or the scale of its {name} are too large to compute with")
            found[part.number] = ops.AdapterPart(a, b, pair.scale)
        return ops.adapter_table(found, num_parts=len(self.parts), device=self.device)

    def _separated(self, b: Tensor) -> Tensor:
        return b.view(-1, self.head_dim // 2, 2, b.shape[1]).transpose(1, 2).reshape(b.shape)

    def _known_linears(self) -> str:
        return ", ".join(sorted({name.rpartition(".")[2] for name in self.parts}))


class AdaptedLinear:
    """Packed weight, and the rows' adapters beside it."""

    __slots__ = ("_linear", "_place", "_step")

    def __init__(self, linear: Any, place: ops.AdapterPlace, step: Step) -> None:
        self._linear, self._place, self._step = linear, place, step

    def multiply(self, x: Tensor) -> Tensor:
        """Multiply: x [T, K] → [T, N]."""
        out = ops.linear(x, self._linear)
        if self._step.tiles is not None:
            ops.add_adapters(out, x, self._step.tiles, self._place)
        return out


class Adapted(_Base):
    """Part of a decoder's class that wraps its linears."""

    sites: LoraTargets

    def _load(self) -> None:
        self.sites = LoraTargets(self._prefix, self.config.head_dim, self._device, self._dtype)
        super()._load()

    def padding(self, num_tokens: int) -> Arrays:
        return {"adapter_tiles": np.array(self.sites.no_adapter.padding_tiles(num_tokens), dtype=np.int64)}

    def _linear(self, parts: Parts, num_inputs: int, **how: Any) -> Any:
        linear = super()._linear(parts, num_inputs, **how)
        if not parts[0][0].startswith(f"{self._prefix}{self.names.layers}."):
            return linear  # before or after the layers, where no step's tiles are known
        return self.sites.wrap(linear, parts, num_inputs, self._order_of)

    def _order_of(self, name: str, size: int) -> Tensor | None:
        if isinstance(self, InterleavedRope) and f"{name}.weight".endswith(self.interleaved):
            return self._order(size)
        return None

    def _run_layers(self, x: Tensor, inputs: Inputs, kv_cache: KVCache) -> Tensor:
        self.sites.step.tiles = inputs.adapter_tiles
        try:
            return super()._run_layers(x, inputs, kv_cache)
        finally:
            self.sites.step.tiles = None

    def _run_layer(
        self, layer: Layer, x: Tensor, residual: Tensor | None, inputs: Inputs, cache: Any, kept: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        return select(kept, *super()._run_layer(layer, x, residual, inputs, cache))  # tiles are of all tokens


def adapted(family: type[Decoder]) -> type[Decoder]:
    """Return the family with adapters. Raises ConfigError for a family that cannot have them."""
    reader = (
        next(kind for kind in family.__mro__ if "_take_weight" in vars(kind)) if issubclass(family, Decoder) else None
    )
    if reader not in _KNOWN_READERS:
        raise ConfigError(f"--enable-lora is not built for {family.__name__}; merge it: peft's merge_and_unload()")
    return type(family.__name__, (Adapted, family), {})
