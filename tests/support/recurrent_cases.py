"""Recurrent layers with random weights, and sequences that run through them in any cut, for the kernel tests."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from splitfuse.kernels.arguments import RaggedBatch, StateBatch, StateView

NUM_SLOTS, MAX_DRAFTS = 40, 5


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Layer:
    """Op of `ops` with its sizes and weights."""

    op: str
    widths: tuple[int, ...]  # of the raw inputs, each [T, width]
    num_channels: int
    num_gates: int
    state_shape: tuple[int, ...]  # of a slot; empty: a convolution alone
    weights: Mapping[str, Tensor | None]
    sizes: Mapping[str, Any]

    def inputs(self, num_tokens: int, *, seed: int) -> list[Tensor]:
        """Raw inputs, as columns of wider tensors, so that their rows lie apart."""
        wide = (randn(num_tokens, width + 3, seed=seed + i) for i, width in enumerate(self.widths))
        return [x[:, : x.shape[1] - 3] for x in wide]

    def view(self, dtype: torch.dtype, *, state_dtype: torch.dtype = torch.float32) -> StateView:
        """Slots full of NaN, views of one pool, so that slots lie apart."""
        num_taps = next(len(weight) for name, weight in self.weights.items() if name == "weight" and weight is not None)
        conv = torch.full((NUM_SLOTS, 2, num_taps - 1, self.num_channels), torch.nan, dtype=dtype)
        tail = torch.full((NUM_SLOTS, 2, MAX_DRAFTS, self.num_channels + self.num_gates), torch.nan, dtype=dtype)
        state = torch.full((NUM_SLOTS, 2, *self.state_shape), torch.nan, dtype=state_dtype)
        return StateView(conv[:, 1], state[:, 1] if self.state_shape else None, tail[:, 1])

    def run(self, backend: Any, inputs: Sequence[Tensor], view: StateView, rows: Sequence["Row"]) -> Tensor:
        """Run the op on the rows' inputs, one row after the other."""
        device = inputs[0].device
        ragged, states = batch(rows, device)
        weights = {name: None if weight is None else weight.to(device) for name, weight in self.weights.items()}
        if inputs[0].dtype == torch.float64:
            weights = {name: None if weight is None else weight.double() for name, weight in weights.items()}
        op: Callable[..., Tensor] = getattr(backend, self.op)
        return op(*inputs, *weights.values(), view, ragged, states, **self.sizes)


class Row(NamedTuple):
    """Places of a row of one step, as in StateBatch."""

    num_tokens: int
    source: int
    target: int
    num_replayed: int = 0
    num_drafts: int = 0
    checkpoints: tuple[tuple[int, int], ...] = ()  # (end, slot)


def batch(rows: Sequence[Row], device: torch.device) -> tuple[RaggedBatch, StateBatch]:
    def array(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    starts, firsts, checkpoints = [0], [0], []
    for row in rows:
        starts.append(starts[-1] + row.num_tokens)
        checkpoints += row.checkpoints
        firsts.append(len(checkpoints))
    longest = max((row.num_tokens for row in rows), default=0)
    ragged = RaggedBatch(
        array(starts), array([1] * len(rows)), torch.zeros(len(rows), 1, dtype=torch.int32, device=device), None,
        longest, longest,
    )  # fmt: skip
    states = StateBatch(
        *(array([row[field] for row in rows]) for field in range(1, 5)),
        array(firsts), array([end for end, _ in checkpoints]), array([slot for _, slot in checkpoints]),
    )  # fmt: skip
    return ragged, states


def short_conv(hidden: int, num_taps: int = 3, *, has_bias: bool = False) -> Layer:
    weights = {"weight": randn(num_taps, hidden, seed=1), "bias": randn(hidden, seed=2) if has_bias else None}
    return Layer("short_conv", (3 * hidden,), hidden, 0, (), weights, {})


def gated_delta(
    num_k_heads: int, head_k_dim: int, num_v_heads: int, head_v_dim: int, num_taps: int = 4, *,
    tiles_heads: bool = False, by_channel: bool = False,
) -> Layer:  # fmt: skip
    num_decays = num_v_heads * (head_k_dim if by_channel else 1)
    num_channels = 2 * num_k_heads * head_k_dim + num_v_heads * head_v_dim
    weights = {
        "weight": randn(num_taps, num_channels, seed=1),
        "a_log": torch.linspace(-4, 2.7, num_v_heads),
        "dt_bias": randn(num_decays, seed=2),
    }
    sizes = {
        "num_k_heads": num_k_heads, "head_k_dim": head_k_dim, "num_v_heads": num_v_heads, "head_v_dim": head_v_dim,
        "tiles_heads": tiles_heads,
    }  # fmt: skip
    state_shape = (num_v_heads, head_k_dim, head_v_dim)
    num_gates = num_v_heads + num_decays
    return Layer("gated_delta", (num_channels, num_gates), num_channels, num_gates, state_shape, weights, sizes)


def mamba2(
    num_heads: int, head_dim: int, num_groups: int, state_size: int, num_taps: int = 4, *, has_bias: bool = True,
    dt_limits: tuple[float, float] = (0.0, float("inf")),
) -> Layer:  # fmt: skip
    num_channels = num_heads * head_dim + 2 * num_groups * state_size
    weights = {
        "weight": randn(num_taps, num_channels, seed=1),
        "bias": randn(num_channels, seed=2) if has_bias else None,
        "a_log": torch.linspace(-4, 2.7, num_heads),
        "d": randn(num_heads, seed=3),
        "dt_bias": randn(num_heads, seed=4),
    }
    sizes = {"head_dim": head_dim, "num_groups": num_groups, "state_size": state_size, "dt_limits": dt_limits}
    state_shape = (num_heads, state_size, head_dim)
    return Layer("mamba2", (num_channels, num_heads), num_channels, num_heads, state_shape, weights, sizes)


LAYERS = {
    "short_conv": short_conv(48),
    "short_conv of 5 taps with a bias": short_conv(37, 5, has_bias=True),
    "gated_delta": gated_delta(2, 32, 4, 48),
    "gated_delta of odd sizes": gated_delta(1, 5, 3, 19, 2),
    "gated_delta with tiled heads": gated_delta(3, 16, 6, 32, tiles_heads=True),
    "gated_delta by channel": gated_delta(3, 32, 3, 48, by_channel=True),
    "gated_delta by channel of odd sizes": gated_delta(2, 5, 2, 19, 2, by_channel=True),
    "mamba2": mamba2(6, 32, 2, 48),
    "mamba2 of odd sizes": mamba2(3, 19, 1, 7, 3, has_bias=False, dt_limits=(0.1, 1.5)),
}


@dataclass
class World:
    """Sequence of `inputs` [L, …], its outputs and states in one plain run, and steps that must come to the same bits.

    A step's other rows are neighbours, which start anew in each step.
    """

    layer: Layer
    backend: Any
    inputs: list[Tensor]
    random: Random

    def __post_init__(self) -> None:
        view = self.layer.view(self.inputs[0].dtype)
        device = self.inputs[0].device
        self.view = StateView(*(None if part is None else part.to(device) for part in view))
        self.length = len(self.inputs[0])
        self.whole = self.step(Row(self.length, -1, 0), self.inputs, has_neighbours=False)
        self.last = self.state(0)

    def state(self, slot: int) -> list[Tensor]:
        """Copies of a slot's convolution and state."""
        return [part[slot].clone() for part in self.view[:2] if part is not None]

    def step(self, row: Row, inputs: Sequence[Tensor], *, has_neighbours: bool = True) -> Tensor:
        """Run a step and return the row's outputs."""
        before, after = ([self._neighbour(slot) for slot in slots] for slots in ((30, 31, 32), (33, 34)))
        if not has_neighbours:
            before = after = []
        rows, parts = zip(*before, (row, inputs), *after, strict=True)
        out = self.layer.run(self.backend, [torch.cat(xs) for xs in zip(*parts, strict=True)], self.view, rows)
        start = sum(neighbour.num_tokens for neighbour, _ in before)
        return out[start : start + row.num_tokens]

    def _neighbour(self, slot: int) -> tuple[Row, list[Tensor]]:
        num_tokens = self.random.choice([0, 1, 1, 2, 7])
        inputs = self.layer.inputs(num_tokens, seed=self.random.randrange(1000))
        like = self.inputs[0]
        row = Row(num_tokens, -1, self.random.choice([slot, -1]))
        return row, [x.to(dtype=like.dtype, device=like.device) for x in inputs]

    def part(self, begin: int, end: int) -> list[Tensor]:
        return [x[begin:end] for x in self.inputs]

    def cuts(self, num_cuts: int) -> Iterator[tuple[int, int]]:
        places = sorted({0, self.length, *(self.random.randrange(self.length) for _ in range(num_cuts))})
        yield from pairwise(places)

    def check_cut(self, num_cuts: int) -> None:
        """Check that steps between any cuts give equal outputs and an equal last state, and twice the same."""
        source = -1
        for begin, end in self.cuts(num_cuts):
            first, second = [slot for slot in (1, 2, 3) if slot != source][:2]
            for target in (first, second):
                outputs = self.step(Row(end - begin, source, target), self.part(begin, end))
                assert torch.equal(outputs, self.whole[begin:end])
            assert all(map(torch.equal, self.state(first), self.state(second)))
            source = first
        assert all(map(torch.equal, self.state(source), self.last))

    def check_checkpoints(self, num_cuts: int) -> None:
        """Check that a sequence goes on from each checkpoint as from its own state."""
        ends = sorted(self.random.sample(range(self.length + 1), 4))
        source, target = -1, 1
        for begin, end in self.cuts(num_cuts):
            inside = tuple((at - begin, 10 + i) for i, at in enumerate(ends) if begin < at <= end or at == begin == 0)
            row = Row(end - begin, source, target, checkpoints=inside)
            assert torch.equal(self.step(row, self.part(begin, end)), self.whole[begin:end])
            source, target = target, 3 - target
        assert all(map(torch.equal, self.state(source), self.last))
        for i, at in enumerate(ends):
            row = Row(self.length - at, 10 + i, 5)
            assert torch.equal(self.step(row, self.part(at, self.length)), self.whole[at:])
            assert all(map(torch.equal, self.state(5), self.last))

    def check_drafts(self, *, first: int) -> None:
        """Check rows with drafts, of which none to all are accepted, against the plain run."""
        row = Row(first, -1, 1)
        outputs = [self.step(row, self.part(0, first))]
        done, source, target, accepted = first, 1, 2, 0
        while done < self.length:
            num_certain = min(self.random.choice([1, 1, 2]), self.length - done)
            num_drafts = min(self.random.randint(0, MAX_DRAFTS), self.length - done - num_certain)
            num_right = self.random.randint(0, num_drafts)
            certain = self.part(done, done + num_certain + num_right)
            wrong = [x + 1 for x in self.part(done + num_certain + num_right, done + num_certain + num_drafts)]
            inputs = [torch.cat(pair) for pair in zip(certain, wrong, strict=True)]
            ends = (accepted, accepted + num_certain)  # after the replayed tokens, and at the end of the certain ones
            kept = tuple((end, 10 + i) for i, end in enumerate(ends))
            row = Row(num_certain + num_drafts, source, target, accepted, num_drafts, kept)
            outputs.append(self.step(row, inputs)[: num_certain + num_right])
            assert all(map(torch.equal, self.state(11), self.state(target)))
            done, accepted = done + num_certain + num_right, num_right
            source, target = target, 3 - target
        self.step(Row(0, source, target, accepted), self.part(0, 0))
        assert torch.equal(torch.cat(outputs), self.whole)
        assert all(map(torch.equal, self.state(target), self.last))

    def check_padding(self) -> None:
        """Check that a row without a target leaves all slots as they are."""
        before = [part.clone() for part in self.view if part is not None]
        assert torch.equal(self.step(Row(5, -1, -1), self.part(0, 5), has_neighbours=False), self.whole[:5])
        now = [part for part in self.view if part is not None]
        assert all(torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0)) for x, y in zip(before, now, strict=True))


def world(layer: Layer, backend: Any, dtype: torch.dtype, *, length: int, seed: int, device: str = "cpu") -> World:
    inputs = [x.to(dtype=dtype, device=device) for x in layer.inputs(length, seed=seed)]
    return World(layer, backend, inputs, Random(seed))


def in_double(layer: Layer, inputs: Sequence[Tensor]) -> tuple[Tensor, StateView]:
    """Return a sequence's outputs in float64, and the view whose slot 0 has its last state."""
    from splitfuse.kernels import reference

    view = layer.view(torch.float64, state_dtype=torch.float64)
    out = layer.run(reference, [x.double().cpu() for x in inputs], view, [Row(len(inputs[0]), -1, 0)])
    return out, view
