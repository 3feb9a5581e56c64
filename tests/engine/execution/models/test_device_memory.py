"""Calls of torch for a GPU's memory, and their order."""

import pytest
import torch

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.execution.models.device_memory import CudaMemory, memory_of, refusing_out_of_memory

GPU = torch.device("cuda", 0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fake a GPU of 1000 bytes: 300 are tensors, 200 are freed tensors until the cache is emptied."""
    names: list[str] = []
    state = {"reserved": 500, "peak": 500}

    def does(name: str, result: object = None, **changes: int) -> None:
        def call(*_: object) -> object:
            names.append(name)
            state.update(changes)
            return result() if callable(result) else result

        monkeypatch.setattr(torch.cuda, name, call)

    does("empty_cache", reserved=300)
    does("mem_get_info", lambda: (1000 - state["reserved"], 1000))
    does("memory_reserved", lambda: state["reserved"])
    does("reset_peak_memory_stats", lambda: state.update(peak=state["reserved"]))
    does("max_memory_reserved", lambda: state["peak"])
    does("synchronize", lambda: state.update(peak=state["peak"] + 50))
    return names


def test_what_freed_tensors_left_counts_as_free(calls: list[str]) -> None:
    assert CudaMemory(GPU).free_and_total() == (700, 1000)


def test_a_peak_is_beside_what_was_in_use_and_waits_for_the_gpu(calls: list[str]) -> None:
    assert CudaMemory(GPU).peak(lambda: calls.append("work")) == 50
    assert calls.index("reset_peak_memory_stats") < calls.index("work") < calls.index("synchronize")


def test_a_cpu_has_none_of_its_own() -> None:
    assert memory_of(torch.device("cpu")) is None


@pytest.mark.parametrize(
    "exc",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. If reserved but unallocated …"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["GPU", "CPU"],
)
def test_out_of_memory_names_the_way_out(exc: Exception) -> None:
    with (
        pytest.raises(ConfigError, match=r"^out of memory: take less \(.*allocate[^…]*\)$"),
        refusing_out_of_memory("take less"),
    ):
        raise exc


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="size mismatch"), refusing_out_of_memory("take less"):
        raise RuntimeError("size mismatch")
