"""Sums in symmetric memory, with a stand-in for torch's on a CPU, beside sums in the order of the ranks."""

import itertools
import os
from typing import Any

import pytest
import torch
from rank_sums import in_order, on_all, terms_of
from symmetric_stand_in import use_symmetric_memory

from splitfuse.kernels import ops, symmetric_memory

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    use_symmetric_memory(monkeypatch)


def groups(num_ranks: int, backend: str) -> list[Any]:
    memory = os.memfd_create("test")
    found = [
        ops.rank_group(memory, rank=rank, num_ranks=num_ranks, limit_s=0, backend=backend, in_order=True)
        for rank in range(num_ranks)
    ]
    os.close(memory)
    on_all(found, lambda group, rank: group.connect())
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_small_sums_have_the_bits_of_large_ones(
    num_ranks: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So `in_order` holds whatever the number of rows: a row alone has the bits that it has among 2,048."""
    small: list[int] = []
    sums = symmetric_memory.SymmetricSums.sum

    def counted(self: Any, x: Any) -> Any:
        small.append(len(x))
        return sums(self, x)

    monkeypatch.setattr(symmetric_memory.SymmetricSums, "sum", counted)
    monkeypatch.setattr(symmetric_memory, "MAX_BYTES", 6 * 75 * 4)
    terms = terms_of(num_ranks, 7, 75, dtype=dtype)
    found = groups(num_ranks, "gloo+symmetric")
    whole = on_all(found, lambda group, rank: group.sum(terms[rank].clone(), width=75))
    assert not small, "7 rows do not fit"
    for rows in (slice(0, 1), slice(3, 4), slice(0, 6), slice(2, 2)):
        parts = on_all(found, lambda group, rank, rows=rows: group.sum(terms[rank][rows].clone(), width=75))
        assert all(torch.equal(part, whole[0][rows]) for part in parts)
        assert all(torch.equal(part, in_order(terms)[rows]) for part in parts)
    assert sorted(set(small)) == [0, 1, 6]


def test_slices_are_added_as_without_symmetric_memory() -> None:
    terms = terms_of(4, 3, 16, dtype=torch.bfloat16)
    parts = [torch.cat(terms[rank * 2 : rank * 2 + 2], dim=1) for rank in range(2)]
    sums = on_all(groups(2, "gloo+symmetric"), lambda group, rank: group.sum(parts[rank], width=16))
    assert all(torch.equal(total, in_order(terms)) for total in sums)


def test_what_is_missing_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = {(0, 1), (1, 0)}
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: (one, other) in reads)
    assert symmetric_memory.missing(2) is None
    assert symmetric_memory.missing(3) == "2, 4 or 8 GPUs, not 3"
    assert symmetric_memory.missing(4) == "GPUs that read each other's memory, which 0 and 2 do not"
    monkeypatch.setattr(torch, "__version__", "2.10.1+cu128")
    assert symmetric_memory.missing(2) == "torch 2.11 or newer, not 2.10.1+cu128"


def test_a_second_engine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetric_memory, "_NUMBERS", itertools.count(1))
    with pytest.raises(RuntimeError, match="for one engine of a process; the backend nccl sums"):
        symmetric_memory.SymmetricSums(None, rank=0, num_ranks=2, device=torch.device("cuda", 0))
