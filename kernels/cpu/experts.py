"""Packed experts on the CPU: matrices stay as `linear` packs them, and one native op multiplies all experts' rows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import large_pages, reference
from ..arguments import ExpertArgs
from . import build
from .linear import NativeLinear
from .quantized_linear import AnyLinear, QuantizedLinear, StackedLinear
from .recording import Recording, Value

Pair = tuple[AnyLinear, AnyLinear]  # gate_up and down of an expert
_LINE = 64  # bytes of a cache line
_ROUNDING = ("input_bits", "input_group", "zero")  # many rows are prepared for the zero, too


class Kind(NamedTuple):
    """Kind of product: experts of one kind multiply prepared rows in one call of an op."""

    op: str  # name of the library's op without its dtype
    start: int  # first column of the result
    num_outputs: int
    num_inputs: int
    out_row: int  # columns of all kinds together
    rounding: tuple[int, ...]  # how inputs are rounded (_ROUNDING)
    has_order: bool  # True if inputs are reordered


class Products(NamedTuple):
    """Grouped product over the experts whose matrix has one packed kind."""

    kind: Kind
    weights: Tensor  # structs of the products (arguments.h), [experts, bytes], zeros for experts of other kinds
    orders: Tensor | None  # [experts, inputs] int64
    kept: list[Tensor]  # tensors whose addresses are in the structs


class NativeExperts:
    """Experts for the native library."""

    def __init__(self, gate_up: Sequence[Products], down: Sequence[Products], args: ExpertArgs) -> None:
        self._gate_up, self._down, self._args = gate_up, down, args

    def multiply(self, x: Tensor, weights: Tensor, expert_ids: Tensor) -> Tensor:
        """Multiply x [T, H] as `ops.experts` does. All memory has a row for each token, so that it can be recorded."""
        library, dtype = build.library(), build.DTYPES[x.dtype]
        assert library is not None
        x = x.contiguous()
        (num_tokens, hidden), top_k, num_experts = x.shape, weights.shape[1], len(self._down[0].weights)
        tokens, places = (x.new_empty(num_tokens, top_k, dtype=torch.int64) for _ in range(2))
        starts = x.new_empty(num_tokens, num_experts + 1, dtype=torch.int64)  # only the first row is used
        library["sort_pairs"](
            ids=expert_ids, tokens=tokens, places=places, starts=starts, num_tokens=num_tokens, top_k=top_k,
            num_experts=num_experts,
        )  # fmt: skip
        num_pairs = num_tokens * top_k
        rows = x.new_empty(num_tokens, top_k * hidden)
        if self._args.weighs_inputs:
            library[f"scatter_weighed_{dtype}"](
                x=x, weights=weights, places=places, out=rows, num_tokens=num_tokens, top_k=top_k, width=hidden
            )
        else:
            library[f"select_rows_{dtype}"](
                x=x, indices=tokens, out=rows, num_rows=num_pairs, width=hidden, x_row=hidden
            )
        gate_up = _multiply(library, rows, self._gate_up, starts, top_k)
        inner = gate_up.shape[1] // top_k // (2 if self._args.is_gated else 1)
        activated = x.new_empty(num_tokens, top_k * inner)
        if self._args.is_gated:
            library[f"gated_{dtype}"](
                gate_up=gate_up, out=activated, num_tokens=num_pairs, inner=inner,
                kind=2 if self._args.limit else int(self._args.is_gelu), limit=self._args.limit,
            )  # fmt: skip
        else:
            library[f"activation_{dtype}"](x=gate_up, out=activated, num_rows=num_pairs, width=inner, kind=3)
        results = _multiply(library, activated, self._down, starts, top_k)
        out = x.new_empty(num_tokens, hidden)
        library[f"weigh_pairs_{dtype}"](
            x=results, weights=None if self._args.weighs_inputs else weights, places=places, out=out,
            num_tokens=num_tokens, top_k=top_k, width=hidden,
        )  # fmt: skip
        return out


def _multiply(library: build.Library, x: Tensor, products: Sequence[Products], starts: Tensor, top_k: int) -> Tensor:
    """Multiply x [T, K · inputs], T · K rows sorted by expert, by the experts' matrices → [T, K · outputs]."""
    dtype, num_rows, width = build.DTYPES[x.dtype], len(x) * top_k, products[0].kind.out_row
    out = x.new_empty(len(x), top_k * width)
    for kind, weights, orders, _ in products:
        rows = x
        if orders is not None:
            rows = x.new_empty(*x.shape)
            library[f"order_groups_{dtype}"](
                x=x, orders=orders, starts=starts, out=rows, num_rows=num_rows, num_groups=len(weights),
                width=kind.num_inputs,
            )  # fmt: skip
        _, columns = out.split_with_sizes([kind.start, top_k * width - kind.start], dim=1)
        library[f"grouped_{kind.op}_{dtype}"](
            x=rows, weights=weights, starts=starts, out=columns, num_rows=num_rows, num_groups=len(weights),
            num_outputs=kind.num_outputs, num_inputs=kind.num_inputs, out_row=width,
        )  # fmt: skip
    return out


class ListedExperts:
    """Experts that run one at a time, so that a matrix is read once for all of its pairs (token, k)."""

    def __init__(self, experts: Sequence[Pair], args: ExpertArgs) -> None:
        self._experts, self._args = experts, args

    def multiply(self, x: Tensor, weights: Tensor, expert_ids: Tensor) -> Tensor:
        """Multiply x [T, H] as `ops.experts` does."""
        pairs = expert_ids.flatten()
        order = pairs.argsort(stable=True)
        counts = pairs.bincount(minlength=len(self._experts)).tolist()
        busy = [expert for expert, count in enumerate(counts) if count]
        # index_select took 5 us for 256 rows of 1024 in bfloat16, x[...] with a tensor 36.
        gathered = x.index_select(0, order // expert_ids.shape[1])
        if self._args.weighs_inputs:
            gathered = (gathered.float() * weights.view(-1, 1).index_select(0, order)).to(x.dtype)
            weights = torch.ones_like(weights)
        outputs = []
        for expert, rows in zip(busy, torch.split(gathered, [counts[expert] for expert in busy]), strict=True):
            gate_up, down = self._experts[expert]
            outputs.append(down.multiply(reference.activate(gate_up.multiply(rows), self._args)))
        out = torch.cat(outputs).index_select(0, order.argsort())
        return _weigh(out.view(*expert_ids.shape, -1), weights)


def _weigh(out: Tensor, weights: Tensor) -> Tensor:
    """Σ_k weights[t, k] · out[t, k], one k after the other: torch's order of a reduction may depend on T."""
    total = out[:, 0].float() * weights[:, :1]
    for k in range(1, out.shape[1]):
        total.addcmul_(out[:, k].float(), weights[:, k : k + 1])
    return total.to(out.dtype)


Experts = NativeExperts | ListedExperts


def pack_experts(experts: Iterable[Pair], num_experts: int, dtype: torch.dtype, args: ExpertArgs) -> Experts:
    """Keep packed experts: natively, in memory of their own, if the library multiplies them."""
    gate_up, down = (_Table(num_experts, dtype) for _ in range(2))
    listed: list[Pair] = []
    for expert, pair in enumerate(experts):
        parts = [packed.parts if isinstance(packed, StackedLinear) else [packed] for packed in pair]
        if all(isinstance(part, NativeLinear | QuantizedLinear) for part in (*parts[0], *parts[1])):
            gate_up.add(expert, parts[0])
            down.add(expert, parts[1])
        else:
            listed.append(pair)
    assert len(listed) in (0, num_experts), "the library multiplies all experts or none"
    if listed:
        return ListedExperts(listed, args)
    return NativeExperts(gate_up.products(), down.products(), args)


class _Table:
    """Products of every expert with one of its matrices."""

    def __init__(self, num_experts: int, dtype: torch.dtype) -> None:
        self._num_experts, self._dtype = num_experts, dtype
        self._structs: dict[Kind, dict[int, bytes]] = {}
        self._orders: dict[Kind, dict[int, Tensor]] = {}
        # One tensor for a field of all experts: tensors of their own would have holes between them.
        self._stacks: dict[tuple[int, str], Tensor] = {}
        self._others: list[Tensor] = []

    def add(self, expert: int, parts: Sequence[Any]) -> None:
        """Copy an expert's matrix: parts that are stacked, NativeLinear or QuantizedLinear."""
        width, start = sum(part.num_outputs for part in parts), 0
        for number, part in enumerate(parts):
            recording = Recording({})
            part.multiply_ordered(
                recording.value(1, part.num_inputs, dtype=self._dtype), recording.value(1, width, dtype=self._dtype)
            )
            ((op, fields),) = recording.calls
            kind = Kind(
                "quantized_linear" if isinstance(part, QuantizedLinear) else "linear",
                start, part.num_outputs, part.num_inputs, width,
                tuple(fields.get(name, 0) for name in _ROUNDING), part.order is not None,
            )  # fmt: skip
            numbers = [
                self._field_value(expert, (number, name), fields.get(name, 1))
                for name, _ in op.fields  # num_threads is 1
            ]
            self._structs.setdefault(kind, {})[expert] = op.packer.pack(*numbers)
            if part.order is not None:
                self._orders.setdefault(kind, {})[expert] = part.order
            start += part.num_outputs

    def _field_value(self, expert: int, place: tuple[int, str], value: Any) -> Any:
        """Return a field's number, for a tensor the address of a copy; 0 for rows and results."""
        if not isinstance(value, Tensor):
            return 0 if value is None or isinstance(value, Value) else value
        if place not in self._stacks:
            size = value.nbytes + -value.nbytes % _LINE
            self._stacks[place] = large_pages.empty(self._num_experts * size).view(self._num_experts, size)
        row = self._stacks[place][expert, : value.nbytes]
        if len(row) < value.nbytes:  # packed in another way than the first expert's
            self._others.append(value)
            return value.data_ptr()
        row.copy_(value.view(-1).view(torch.uint8))
        return row.data_ptr()

    def products(self) -> list[Products]:
        """Return the products, in the order of the parts."""
        kept = [*self._stacks.values(), *self._others]
        return [
            Products(kind, self._weights(structs), self._order(kind), kept) for kind, structs in self._structs.items()
        ]

    def _weights(self, structs: Mapping[int, bytes]) -> Tensor:
        size = len(next(iter(structs.values())))
        whole = b"".join(structs.get(expert, bytes(size)) for expert in range(self._num_experts))
        return torch.frombuffer(bytearray(whole), dtype=torch.uint8).view(self._num_experts, size)

    def _order(self, kind: Kind) -> Tensor | None:
        if not kind.has_order:
            return None
        identity = torch.arange(kind.num_inputs)
        return torch.stack([self._orders[kind].get(expert, identity) for expert in range(self._num_experts)])
