"""Exchanges of torch's groups, by gloo on a CPU, beside those of RankGroup. Ranks are threads here."""

import os
import threading
from typing import Any

import pytest
import torch
from rank_sums import in_order, on_all, terms_of

from splitfuse.kernels import ops

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def groups(num_ranks: int, *, in_order: bool = False) -> list[Any]:
    memory = os.memfd_create("test")
    found = [
        ops.rank_group(memory, rank=rank, num_ranks=num_ranks, limit_s=0, backend="gloo", in_order=in_order)
        for rank in range(num_ranks)
    ]
    os.close(memory)
    on_all(found, lambda group, rank: group.connect())
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_ranks", "num_parts"), [(1, 1), (1, 4), (2, 1), (2, 2), (3, 1)])
def test_sums_in_order_have_the_bits_of_a_sum_one_after_the_other(
    num_ranks: int, num_parts: int, dtype: torch.dtype
) -> None:
    terms = terms_of(num_ranks * num_parts, 7, 75, dtype=dtype)
    parts = [torch.cat(terms[rank * num_parts : (rank + 1) * num_parts], dim=1) for rank in range(num_ranks)]
    sums = on_all(groups(num_ranks, in_order=True), lambda group, rank: group.sum(parts[rank], width=75))
    assert all(torch.equal(total, in_order(terms)) for total in sums)


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_terms_have_one_sum_in_any_order(dtype: torch.dtype) -> None:
    """This is the reason why two GPUs may have equal bits in any batch without `in_order`."""
    terms = terms_of(2, 5, 64, dtype=dtype)
    sums = on_all(groups(2), lambda group, rank: group.sum(terms[rank].clone(), width=64))
    assert all(torch.equal(total, in_order(terms)) for total in sums)


def test_three_ranks_add_up() -> None:
    terms = terms_of(3, 4, 33, dtype=torch.float32)
    sums = on_all(groups(3), lambda group, rank: group.sum(terms[rank].clone(), width=33))
    for total in sums:
        torch.testing.assert_close(total, in_order(terms))
    assert torch.equal(sums[0], sums[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_columns_of_different_widths_are_gathered_where_they_are_wanted(dtype: torch.dtype) -> None:
    widths = [7, 8, 6]
    parts = [torch.randn(9, width).to(dtype) for width in widths]
    gathered = on_all(groups(3), lambda group, rank: group.gather(parts[rank], widths, wanted=rank == 0))
    assert torch.equal(gathered[0], torch.cat(parts, dim=1))
    assert all(gathered[rank] is parts[rank] for rank in (1, 2))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16])
def test_rank_0_s_tensor_reaches_all(dtype: torch.dtype) -> None:
    for shape in ((11,), (3, 5)):
        own = [torch.full(shape, 5 * (rank == 0)).to(dtype) for rank in range(3)]
        for found in on_all(groups(3), lambda group, rank, own=own: group.broadcast(own[rank])):
            assert torch.equal(found, torch.full(shape, 5).to(dtype))


def test_a_rank_that_waits_ends_when_another_ends() -> None:
    """A GPU's rank is ended by `stop`, which aborts NCCL; gloo's by the other's end."""
    first, second = groups(2)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            first.sum(torch.zeros(1, 8), width=8)
        except RuntimeError as exc:
            errors.append(exc)

    waiting = threading.Thread(target=wait)
    waiting.start()
    second._group = None  # closes its connections
    waiting.join(240)
    assert not waiting.is_alive()
    assert errors
    first.stop()
    assert first.failure() == "the exchange was stopped"
