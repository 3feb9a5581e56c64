"""Bench of kernels: the GPU's limits, results as shares of the limits, and the results so far."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from kernel_cases import DEVICE, INTERPRETED
from torch import Tensor

DTYPE = torch.float16 if INTERPRETED else torch.bfloat16


@dataclass(frozen=True)
class Result:
    name: str
    microseconds: float
    gigabytes_per_second: float = 0.0
    teraflops: float = 0.0
    share: str = ""  # share of the copy or the matmul, whichever bounds the kernel
    rival: str = ""
    times_rival: float = 0.0  # the rival's time over ours: above 1 is faster
    error: float | None = None  # largest difference from torch
    goal: float = 0.0
    met: bool | None = None  # None: no goal

    def __str__(self) -> str:
        rate = f"{self.teraflops:7.1f} TFLOP/s" if self.teraflops else f"{self.gigabytes_per_second:7.0f} GB/s   "
        error = "" if self.error is None else f"error {self.error:.4f}"
        rival = f"{self.times_rival:5.2f}x {self.rival}" if self.rival else ""
        goal = "" if self.met is None else f" {'meets' if self.met else 'MISSES'} {self.goal:g}"
        return f"{self.name:38} {self.microseconds:10.1f} us {rate} {self.share:14} {error:13} {rival}{goal}"


def median_us(*runs: Callable[[], object]) -> float:
    """Return the time of a run, in a CUDA graph as an engine launches it: its kernels and the gaps before them.

    The graph has each run (one alone three times), and a read of 256 MB before each, which leaves nothing of it in L2
    and no line that is still to be written. The time of the reads alone is taken off. What cannot be captured is
    launched by the host.
    """
    if INTERPRETED:
        start = time.perf_counter()
        runs[0]()
        return (time.perf_counter() - start) * 1e6
    flush, total = torch.zeros(2**26, device=DEVICE), torch.empty((), device=DEVICE)  # larger than any L2
    in_turn = runs if len(runs) > 1 else runs * 3

    def each(run: bool) -> None:
        for one in in_turn:
            torch.sum(flush, dim=0, out=total)
            if run:
                one()

    both, reads = (_captured(partial(each, run)) for run in (True, False))
    times = [_elapsed_us(replay) for replay in (both, reads)]
    return (times[0] - times[1]) / len(in_turn)


def _captured(run: Callable[[], object]) -> Callable[[], object]:
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            run()
    except RuntimeError as exc:
        print(f"not in a graph: {str(exc).splitlines()[0]}", flush=True)
        return run
    return graph.replay


def _elapsed_us(run: Callable[[], object]) -> float:
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(25)]
    for start, end in events:
        # The GPU waits some 0.1 ms, so the host has launched the run before it begins.
        torch.cuda._sleep(200_000)
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events[5:]) * 1e3


def difference(got: Tensor, expected: Tensor) -> float:
    return float((got.float() - expected.float()).abs().max())


@dataclass(frozen=True)
class Goal:
    """Goal: at least this share of the limit, or this multiple of the rival's speed."""

    share: float = 0.0
    times_rival: float = 0.0

    def on(self, result: Result, share: float) -> Result:
        met = share >= self.share and result.times_rival >= self.times_rival
        return replace(result, goal=self.times_rival or self.share, met=met)


class Bench:
    """Bench with the two limits, and the results so far."""

    def __init__(self, save: Callable[[list[Result]], None]) -> None:
        self.results: list[Result] = []
        self._save = save
        size, side = (2**12, 64) if INTERPRETED else (2**30, 8192)
        x, y = (torch.randint(0, 255, (size,), dtype=torch.uint8, device=DEVICE) for _ in range(2))
        microseconds = median_us(lambda: torch.bitwise_not(x, out=y))  # in a graph copy_ takes 1.2 times as long
        self.copy_gigabytes = 2 * size / microseconds / 1e3
        self._add(Result(f"limit: copy of {size} bytes", microseconds, self.copy_gigabytes))
        a, b = (torch.randn(side, side, device=DEVICE, dtype=DTYPE) for _ in range(2))
        microseconds = median_us(lambda: a @ b)
        self.matmul_teraflops = 2 * side**3 / microseconds / 1e6
        self._add(Result(f"limit: matmul of {side}^3", microseconds, teraflops=self.matmul_teraflops))

    def _add(self, result: Result) -> None:
        self.results.append(result)
        print(result, flush=True)
        self._save(self.results)  # at once: the next case may hang

    def time(
        self,
        name: str,
        *runs: Callable[[], Any],
        num_bytes: float = 0.0,
        num_operations: float = 0.0,
        error: float | None = None,
        rival: tuple[str, Callable[[], Any]] | None = None,
        goal: Goal | None = None,
    ) -> float:
        """Time a case, and record its result. Returns microseconds."""
        microseconds = median_us(*runs)
        gigabytes, teraflops = num_bytes / microseconds / 1e3, num_operations / microseconds / 1e6
        of_copy, of_matmul = gigabytes / self.copy_gigabytes, teraflops / self.matmul_teraflops
        share = f"{of_matmul:4.0%} of matmul" if num_operations else f"{of_copy:4.0%} of copy"
        result = Result(name, microseconds, gigabytes, teraflops, share, error=error)
        if rival:
            result = replace(result, rival=rival[0], times_rival=median_us(rival[1]) / microseconds)
        self._add(goal.on(result, of_matmul if num_operations else of_copy) if goal else result)
        return microseconds


class Rehearsal(Bench):
    """Bench for compilation ahead: launches every case once, and times nothing."""

    def __init__(self) -> None:
        self.results = []

    def time(
        self, name: str, *runs: Callable[[], Any], rival: tuple[str, Callable[[], Any]] | None = None, **figures: Any
    ) -> float:
        for run in (*runs, *([rival[1]] if rival else ())):
            run()
        return 0.0
