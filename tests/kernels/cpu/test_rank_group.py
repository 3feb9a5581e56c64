"""Sums over ranks are in the order of the ranks, whatever else is in the batch. Ranks are threads here."""

import os
import threading
from typing import Any

import pytest
import torch
from rank_sums import in_order, on_all, terms_of

from splitfuse.kernels import ops
from splitfuse.kernels.cpu import build

pytestmark = pytest.mark.skipif(build.library() is None, reason="needs a C++ compiler for the native CPU library")
DTYPES = [torch.float32, torch.bfloat16]


def groups(num_ranks: int, *, limit_s: float = 60.0) -> list[Any]:
    memory = os.memfd_create("test")
    ranks = [ops.rank_group(memory, rank=rank, num_ranks=num_ranks, limit_s=limit_s) for rank in range(num_ranks)]
    os.close(memory)
    return ranks


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_a_sum_is_that_of_the_terms_in_order_on_every_rank(num_ranks: int, dtype: torch.dtype) -> None:
    ranks = groups(num_ranks)
    # One row of few numbers; rows whose width is no multiple of a vector; more than an area holds at once.
    for rows, width, count in ((1, 5, 1), (7, 75, 2), (3000, 520, 1), (1, 4096, 3)):
        terms = terms_of(num_ranks * count, rows, width, dtype=dtype)
        parts = [torch.cat(terms[rank * count : (rank + 1) * count], dim=1) for rank in range(num_ranks)]
        sums = on_all(ranks, lambda group, rank, parts=parts, width=width: group.sum(parts[rank], width=width))
        assert all(torch.equal(total, in_order(terms)) for total in sums)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_slices_give_the_same_bits_on_any_number_of_ranks(dtype: torch.dtype) -> None:
    terms, totals = terms_of(4, 9, 200, dtype=dtype), []
    for num_ranks in (1, 2, 4):
        count = 4 // num_ranks
        parts = [torch.cat(terms[rank * count : (rank + 1) * count], dim=1) for rank in range(num_ranks)]
        totals += on_all(groups(num_ranks), lambda group, rank, parts=parts: group.sum(parts[rank], width=200))
    assert all(torch.equal(total, totals[0]) for total in totals)


def test_a_row_has_the_same_sum_alone_and_in_company() -> None:
    """With gloo's all_reduce 21 % of the sums would differ, from three ranks on."""
    terms, ranks = terms_of(3, 64, 1024, dtype=torch.float32), groups(3)
    together = on_all(ranks, lambda group, rank: group.sum(terms[rank], width=1024))[0]
    alone = on_all(ranks, lambda group, rank: group.sum(terms[rank][17:18], width=1024))[0]
    assert torch.equal(together[17:18], alone)


@pytest.mark.parametrize("dtype", DTYPES)
def test_columns_of_different_widths_are_gathered_where_they_are_wanted(dtype: torch.dtype) -> None:
    widths = [7, 8, 6]
    parts = [torch.randn(900, width).to(dtype) for width in widths]
    gathered = on_all(groups(3), lambda group, rank: group.gather(parts[rank], widths, wanted=rank == 0))
    assert torch.equal(gathered[0], torch.cat(parts, dim=1))


def test_a_rank_that_does_not_come_is_named_and_waited_for_once() -> None:
    group = groups(3, limit_s=0.05)[0]
    assert group.failure() is None
    for _ in range(3):  # with a limit for every call only the clock would show a failure
        group.sum(torch.zeros(1, 8), width=8)
        assert group.failure() == "rank 1 does not answer"


def test_a_rank_that_waits_for_ever_ends_when_it_is_stopped() -> None:
    first, second = groups(2, limit_s=0)
    waiting = threading.Thread(target=lambda: second.sum(torch.zeros(1, 8), width=8))
    waiting.start()
    first.stop()
    waiting.join(240)
    assert not waiting.is_alive()
    assert second.failure() == "the exchange was stopped"
