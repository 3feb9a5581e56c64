"""Recording of a plan: Values, tensors without memory, which record each native op that takes them.

A Value has the methods that the backend and the models call on a tensor: shape, views of columns, new results. Any
other method is an AttributeError or a TypeError, from which plan.py concludes that the model has no plan.
"""

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch


class NativeOp(NamedTuple):
    """Function of the library, with its struct in arguments.h."""

    address: int
    packer: struct.Struct
    fields: tuple[tuple[str, str], ...]  # (name, `struct` format)


class Call(NamedTuple):
    """Call of an op with its fields: numbers, tensors, Values, None."""

    op: NativeOp
    fields: Mapping[str, Any]

    def buffers(self) -> set["Buffer"]:
        return {value.buffer for value in self.fields.values() if type(value) is Value}


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory that Values are views of: allocated by the plan, or the step's array of this name."""

    row_bytes: int
    name: str | None = None


@dataclass(frozen=True)
class Recording:
    """Native ops of a forward pass, in order."""

    ops: Mapping[tuple[str, torch.dtype], Callable[..., None]]  # the library's ops for methods of Values
    calls: list[Call] = field(default_factory=list)

    def value(self, *shape: int, dtype: torch.dtype, name: str | None = None) -> "Value":
        width = math.prod(shape[1:])
        return Value(self, Buffer(width * dtype.itemsize, name), shape, dtype, width, 0)


class Value:
    """Stand-in for a tensor [rows, …]: some columns of each row of a buffer."""

    __slots__ = ("_offset", "_recording", "_row_stride", "buffer", "dtype", "shape")
    device = torch.device("cpu")

    def __init__(
        self,
        recording: Recording,
        buffer: Buffer,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        row_stride: int,
        offset: int,
    ) -> None:
        """`row_stride`, `offset`: in elements."""
        self._recording, self.buffer, self.shape, self.dtype = recording, buffer, shape, dtype
        self._row_stride, self._offset = row_stride, offset

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name} is no native op")

    def record(self, op: NativeOp, fields: Mapping[str, Any]) -> None:
        self._recording.calls.append(Call(op, fields))

    @property
    def byte_offset(self) -> int:
        return self._offset * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return math.prod(self.shape)

    def stride(self, dim: int) -> int:
        return self._row_stride if dim == 0 else math.prod(self.shape[dim + 1 :])

    def is_contiguous(self) -> bool:
        return self._row_stride == self._width

    def contiguous(self) -> "Value":
        return self if self.is_contiguous() else self._select(None, len(self))

    def new_empty(self, *shape: int, dtype: torch.dtype | None = None) -> "Value":
        return self._recording.value(*shape, dtype=dtype or self.dtype)

    def view(self, rows: int, *inner: int) -> "Value":
        """View with another shape of a row."""
        width = self._width
        known = math.prod(size for size in inner if size != -1)
        shape = (rows, *(width // known if size == -1 else size for size in inner))
        if rows != self.shape[0] or math.prod(shape[1:]) != width:
            raise TypeError(f"{self.shape} would be viewed as {shape}")
        return Value(self._recording, self.buffer, shape, self.dtype, self._row_stride, self._offset)

    reshape = view

    def view_as(self, other: "Value") -> "Value":
        return self.view(*other.shape)

    def flatten(self, start_dim: int) -> "Value":
        return self.view(*self.shape[:start_dim], -1)

    def mul_(self, factor: float) -> "Value":
        return self._add_scaled(self, None, factor)

    def __add__(self, other: "Value") -> "Value":
        return self._add_scaled(self.new_empty(*self.shape), other, 1.0)

    def _add_scaled(self, out: "Value", other: "Value | None", factor: float) -> "Value":
        if not self.is_contiguous() or not (other is None or other.is_contiguous()):
            raise TypeError("columns of a matrix would be added")
        self._op("add_scaled")(x=self, other=other, out=out, num_rows=len(self), width=self._width, factor=factor)
        return out

    def split_with_sizes(self, sizes: list[int], dim: int) -> list["Value"]:
        if dim != 1 or sum(sizes) != self.shape[1]:
            raise TypeError(f"{self.shape} would be split along dimension {dim}")
        parts, start = [], self._offset
        for size in sizes:
            shape = (self.shape[0], size, *self.shape[2:])
            parts.append(Value(self._recording, self.buffer, shape, self.dtype, self._row_stride, start))
            start += size * self.stride(1)
        return parts

    def index_select(self, dim: int, indices: "Value") -> "Value":
        if dim:
            raise TypeError(f"columns of {self.shape} would be selected")
        return self._select(indices, len(indices))

    def _select(self, indices: "Value | None", num_rows: int) -> "Value":
        out = self.new_empty(num_rows, *self.shape[1:])
        self._op("select_rows")(
            x=self, indices=indices, out=out, num_rows=num_rows, width=self._width, x_row=self._row_stride
        )
        return out

    def _op(self, name: str) -> Callable[..., None]:
        return self._recording.ops[name, self.dtype]

    @property
    def _width(self) -> int:
        return math.prod(self.shape[1:])
