"""Program of a rank other than 0 (rank_processes.py starts it): it repeats rank 0's calls on its own share."""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from ....kernels import ops
from ...errors import SplitfuseError
from ...execution.models.config import ModelConfig
from ...execution.models.forward_inputs import Inputs
from ...execution.models.kv_cache import KVCache
from ...execution.models.registry import read_model_config
from ...execution.models.tensor_parallel import TensorParallel
from ...serving.loading import load_model
from .cores import bind
from .parallel_model import Setup, own_config, unpacked

_PR_SET_PDEATHSIG = 1


class RankRunner:
    """Share of the model and of its cache; the methods are the kinds of messages."""

    def __init__(self, setup: Setup, parallel: TensorParallel) -> None:
        """Load the rank's share of the model. Raises ConfigError."""
        self._setup = setup
        self._config: ModelConfig = read_model_config(
            setup.folder, rope_scaling=setup.config.rope_scaling, impl=setup.config.model_impl
        )
        self._model = load_model(
            setup.config, setup.folder, self._config, device=torch.device("cpu"), dtype=setup.dtype,
            max_model_len=setup.max_model_len, parallel=parallel,
        )  # fmt: skip
        self._parallel = parallel
        self._cache: KVCache
        self._hidden: Tensor

    def make_cache(self, num_blocks: int, num_host_blocks: int, dtype: torch.dtype) -> None:
        """Create the rank's share of the cache. Raises ConfigError."""
        self._cache = KVCache(
            own_config(self._config, self._parallel), num_blocks=num_blocks, num_host_blocks=num_host_blocks,
            block_size=self._setup.config.block_size, dtype=dtype, device=torch.device("cpu"),
        )  # fmt: skip

    def copy_blocks(self, moves: dict[str, Any]) -> None:
        self._cache.copy_blocks(**moves)

    def forward(self, inputs: Inputs) -> None:
        self._hidden = self._model.forward(inputs, self._cache)

    def logits(self, first: int, count: int) -> None:
        """Compute the logits of adjacent rows of the last hidden states."""
        self._model.logits(self._hidden[first : first + count])


def main() -> None:
    """Run with the numbers from `_live`, until rank 0 ends."""
    rank, size, num_slices, parent, memory, pipe = map(int, sys.argv[1:])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return  # rank 0 ended before prctl was called
    bind(rank, size)
    group = ops.rank_group(memory, rank=rank, num_ranks=size, limit_s=0)
    _follow(Connection(pipe), TensorParallel(rank=rank, size=size, num_slices=num_slices, group=group))


@torch.inference_mode()
def _follow(pipe: Connection, parallel: TensorParallel) -> None:
    with _answer(pipe):
        setup = Setup(*_received(pipe))
        torch.set_num_threads(setup.num_threads)
        runner = RankRunner(setup, parallel)
    with _answer(pipe):
        runner.make_cache(*_received(pipe))
    while not parallel.group.failure():
        kind, *arguments = _received(pipe)
        if kind == "forward":
            runner.forward(unpacked(arguments))
        else:
            getattr(runner, kind)(*arguments)


def _received(pipe: Connection) -> Any:
    """Return the next message. End this process if rank 0 has closed the pipe."""
    try:
        return pipe.recv()
    except (EOFError, OSError):
        sys.exit()


@contextlib.contextmanager
def _answer(pipe: Connection) -> Iterator[None]:
    """Answer rank 0 that the block is done; after an error, answer its text and end this process."""
    try:
        yield
    except (SplitfuseError, RuntimeError, OSError, MemoryError) as exc:
        _send(pipe, str(exc) or type(exc).__name__)
        sys.exit(1)
    _send(pipe, None)


def _send(pipe: Connection, answer: str | None) -> None:
    with contextlib.suppress(OSError):  # rank 0 may be gone
        pipe.send(answer)
