"""Program of a rank other than 0 (rank_processes.py starts it): it repeats rank 0's calls on its own share."""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch

from ...core.block_manager import CacheSpec
from ...device import stream_of
from ...errors import SplitfuseError
from ...execution.models.device_memory import memory_of
from ...execution.models.forward_inputs import Arrays, Bounds, Inputs
from ...execution.models.kv_cache import KVCache
from ...execution.models.resolved_model import resolve
from ...execution.models.tensor_parallel import TensorParallel
from ...execution.runner.model_runner import LoadedModel, ModelRunner
from ...execution.runner.stages import Stages
from ...execution.runner.transfer import DirectTransfer, Transfer
from ...serving.loading import load_model
from .cores import bind
from .group import Group
from .parallel_model import RankModel, Setup, own_config

_PR_SET_PDEATHSIG = 1
# Kinds of messages whose answers rank 0 waits for.
_ANSWERED = ("make_cache", "measure", "load_launcher")


class RankRunner:
    """Share of the model and of its cache; the methods are the kinds of messages."""

    def __init__(self, setup: Setup, parallel: TensorParallel) -> None:
        """Load the rank's share of the model. Raises ConfigError."""
        self._resolved = resolve(setup.config, setup.folder)
        self._config, self._device = self._resolved.model, self._resolved.device
        model = load_model(self._resolved, parallel=parallel)
        self._model = RankModel(model, parallel)
        self._own_config = own_config(self._config, parallel)
        self._transfer: Transfer = DirectTransfer(self._device)
        self._runner: ModelRunner
        self._stages: Stages

    def measure(self) -> int:
        """Return the bytes that this rank's GPU has for its cache. Raises ConfigError."""
        from ...execution.runner.launching import measured_budget

        memory = memory_of(self._device)
        assert memory is not None
        return measured_budget(self._model, memory, self._resolved, cached=self._own_config)[1]

    def make_cache(self, num_blocks: int, num_host_blocks: int, dtype: torch.dtype) -> None:
        """Create the rank's share of the cache. Raises ConfigError."""
        block_size = self._resolved.config.block_size
        cache = KVCache(
            self._own_config, num_blocks=num_blocks, num_host_blocks=num_host_blocks,
            block_size=block_size, dtype=dtype, device=self._device,
        )  # fmt: skip
        spec = CacheSpec(num_blocks, block_size, num_host_blocks, None)
        loaded = LoadedModel(self._resolved, spec)
        self._runner = ModelRunner(self._model, cache, loaded)
        self._stages = self._runner.stages

    def load_launcher(self) -> None:
        """Create the launcher of steps, with the graphs that rank 0 has."""
        from ...execution.runner.launching import load_launcher

        launcher = load_launcher(self._runner, self._resolved.config)
        self._transfer, self._stages = launcher.buffers, launcher.stages

    def copy_blocks(self, moves: dict[str, Any]) -> None:
        self._runner.cache.copy_blocks(**moves)

    def capture(self, size: int, is_mixed: bool) -> None:
        """Capture a graph."""
        graphs = self._stages.graphs.of_kind(is_mixed)
        assert graphs is not None, "rank 0 has some"
        self._stages.graphs.capture(size, graphs)

    def forward(self, arrays: Arrays, plans: Arrays, bounds: tuple[Any, ...], graph: tuple[bool, int] | None) -> None:
        """Compute a step, by a graph if rank 0 does. Tokens that only rank 0 knows come with the first exchange."""
        fields, host = self._transfer.send(arrays, plans)
        if graph is None:
            self._stages.forward_pass.forward(fields.get("sources"), Inputs.of(fields, Bounds(*bounds)))
        else:
            graphs = self._stages.graphs.of_kind(graph[0])
            assert graphs is not None, "rank 0 has some"
            graphs.replay(graph[1], fields["block_tables"])
        if host is not None:
            host.event = stream_of(self._device).record()

    def logits(self, shape: tuple[int, int], dtype: torch.dtype) -> None:
        """Compute the logits of rank 0's hidden states."""
        self._model.logits(torch.empty(shape, dtype=dtype, device=self._device))


def main() -> None:
    """Run with the arguments from `_live`, until rank 0 ends."""
    rank, parent, memory, pipe = map(int, sys.argv[1:5])
    group = Group.of_arguments(sys.argv[5:])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return  # rank 0 ended before prctl was called
    if group.backend != "nccl":
        bind(rank, group.size)
    _follow(Connection(pipe), group.join(memory, rank=rank, limit_s=0))


@torch.inference_mode()
def _follow(pipe: Connection, parallel: TensorParallel) -> None:
    setup = Setup(*_received(pipe))
    torch.set_num_threads(setup.num_threads)
    runner = _answered(pipe, RankRunner, setup, parallel, answers=False)
    parallel.group.connect()
    while not parallel.group.failure():
        kind, *arguments = _received(pipe)
        if kind in _ANSWERED:
            _answered(pipe, getattr(runner, kind), *arguments)
        else:
            getattr(runner, kind)(*arguments)


def _received(pipe: Connection) -> Any:
    """Return the next message. End this process if rank 0 has closed the pipe."""
    try:
        return pipe.recv()
    except (EOFError, OSError):
        sys.exit()


def _answered(pipe: Connection, call: Any, *arguments: Any, answers: bool = True) -> Any:
    """Make a call and send rank 0 its result, if it `answers`; after an error, send its text and end this process."""
    try:
        result = call(*arguments)
    except (SplitfuseError, RuntimeError, OSError, MemoryError) as exc:
        _send(pipe, str(exc) or type(exc).__name__, None)
        sys.exit(1)
    _send(pipe, None, result if answers else None)
    return result


def _send(pipe: Connection, error: str | None, result: Any) -> None:
    with suppress(OSError):  # rank 0 may be gone
        pipe.send((error, result))
