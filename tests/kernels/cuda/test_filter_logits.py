"""Filters of every backend against the reference in float64: rows with different filters in one batch."""

from collections.abc import Callable

import pytest
import torch
from kernel_cases import DEVICE
from torch import Tensor

from splitfuse.kernels import reference
from splitfuse.kernels.cpu import backend as cpu
from splitfuse.kernels.cuda import filter_logits

pytestmark = pytest.mark.sampled(12)

FILTERS = [cpu.filter_logits, filter_logits.filter_logits] if DEVICE == "cpu" else [filter_logits.filter_logits]
Filter = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def filters_of(*rows: tuple[int, float, float]) -> tuple[Tensor, Tensor, Tensor]:
    top_k, top_p, min_p = zip(*rows, strict=True)
    return (
        torch.tensor(top_k, dtype=torch.int32, device=DEVICE),
        torch.tensor(top_p, dtype=torch.float32, device=DEVICE),
        torch.tensor(min_p, dtype=torch.float32, device=DEVICE),
    )


def logits_of(num_rows: int, size: int, *, seed: int, num_values: int = 0) -> Tensor:
    """Return normal logits, or logits of `num_values` different values, in a view of wider rows of NaN."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.full((num_rows, size + 7), float("nan"))
    wide[:, 3:-4] = torch.randn(num_rows, size, generator=generator) * 4
    if num_values:
        wide[:, 3:-4] = torch.randint(0, num_values, (num_rows, size), generator=generator).float()
    return wide.to(DEVICE)[:, 3:-4]


EVERY_SORT = [
    (0, 1.0, 0.0), (1, 1.0, 0.0), (7, 1.0, 0.0), (50, 1.0, 0.0), (10**6, 1.0, 0.0),
    (0, 0.0, 0.0), (0, 0.5, 0.0), (0, 0.95, 0.0), (0, 0.9999, 0.0), (0, 1.0, 0.1),
    (50, 0.9, 0.0), (3, 0.01, 0.0), (50, 0.9, 0.2), (0, 0.7, 1.0), (2, 1.0, 1e-9),
]  # fmt: skip


@pytest.mark.parametrize("filter_logits", FILTERS)
@pytest.mark.parametrize("num_values", [0, 1, 5, 300])
@pytest.mark.parametrize("size", [3, 2500])  # less than a tile, and two tiles
def test_keeps_what_the_reference_keeps(filter_logits: Filter, size: int, num_values: int) -> None:
    check(filter_logits, EVERY_SORT, logits_of(len(EVERY_SORT), size, seed=size + num_values, num_values=num_values))


def test_rows_of_several_chunks() -> None:
    filters = [(50, 1.0, 0.0), (0, 0.95, 0.0), (50, 0.9, 0.2)]
    check(filter_logits.filter_logits, filters, logits_of(3, 2 * filter_logits.CHUNK + 500, seed=1))


def check(filter_logits: Filter, filters: list[tuple[int, float, float]], logits: Tensor) -> None:
    expected = reference.filter_logits(logits.double(), *filters_of(*filters))
    got = filter_logits(logits.clone(), *filters_of(*filters))
    differ = got.isinf() != expected.isinf()
    sums = torch.tensor([0.0 < top_p < 1.0 for _, top_p, _ in filters], device=DEVICE)
    assert not differ[~sums].any()
    assert (logits.softmax(dim=1) * differ).sum(dim=1).max() < 1e-5  # sums in float32 decide between neighbours
    assert torch.equal(got[~got.isinf()], logits[~got.isinf()])


@pytest.mark.parametrize("filter_logits", FILTERS)
def test_rows_that_are_mostly_impossible(filter_logits: Filter) -> None:
    logits = torch.full((len(EVERY_SORT), 400), -torch.inf, device=DEVICE)
    logits[:, 17], logits[:, 333] = 2.0, 1.0
    expected = reference.filter_logits(logits.double(), *filters_of(*EVERY_SORT))
    assert torch.equal(filter_logits(logits.clone(), *filters_of(*EVERY_SORT)).isinf(), expected.isinf())


@pytest.mark.parametrize("filter_logits", FILTERS)
def test_what_is_not_finite_ends_too(filter_logits: Filter) -> None:
    logits = logits_of(2, 300, seed=1).clone()
    logits[0, 5] = torch.nan
    healthy = logits[1].double()
    got = filter_logits(logits, *filters_of((5, 0.9, 0.0), (5, 0.9, 0.0)))
    assert torch.equal(got[1].isinf(), reference.filter_logits(healthy[None], *filters_of((5, 0.9, 0.0)))[0].isinf())


def test_a_row_that_asks_for_nothing_is_not_read() -> None:
    logits = torch.full((1, 300), torch.nan, device=DEVICE)
    assert filter_logits.filter_logits(logits, *filters_of((0, 1.0, 0.0))).isnan().all()


@pytest.mark.parametrize("capacity", [0, 256])
def test_what_a_chunk_left_out_is_found_in_the_row(capacity: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the kept tokens are in one chunk, more than a chunk passes on."""
    monkeypatch.setattr(filter_logits, "CAPACITY", capacity)
    logits = logits_of(3, 5000, seed=5) * 0.2
    logits[:, :4096] += 9
    filters = filters_of((700, 1.0, 0.0), (2000, 0.9, 0.0), (100, 1.0, 0.0))
    expected = reference.filter_logits(logits.double(), *filters)
    assert (expected.isfinite()[:, :4096].sum(dim=1) > 256).tolist() == [True, True, False]
    got = filter_logits.filter_logits(logits.clone(), *filters)
    assert (got.isinf() != expected.isinf()).sum(dim=1).max() <= 1  # sums in float32 decide between neighbours
