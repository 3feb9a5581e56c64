"""RankProcesses: the other ranks of a tensor-parallel model, processes that this one starts, directs and ends.

Ranks know no requests: they get messages over a pipe and repeat the calls of this process, rank 0, on their own share.
Their shared memory has no name in the system (a memfd), so nothing is left of it, however the ranks end.
"""

import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import ForkingPickler
from typing import Any

from ...errors import ConfigError, RankLostError
from ...execution.runner.forward_pass import Ranks
from ...execution.runner.step import Step
from .group import Group, environment

# Longest wait for a slow rank in a sum; a rank that has ended or is stopped is noticed at once (_watch).
_LIMIT_S = 10.0
# A rank may be stopped for a moment, perhaps together with this process.
_STOPPED_S = 1.0
# A step that fails because a rank has ended fails some moments before the watcher says which.
_NOTICE_S = 1.0
_WAYS = os.WEXITED | os.WSTOPPED | os.WNOWAIT if hasattr(os, "WEXITED") else 0
_PROGRAM = "from splitfuse.engine.extras.parallel.rank_process import main; main()"


class RankProcesses(Ranks):
    """Processes of ranks 1 to `size` - 1, which end with this object or process. For one thread, except `on_lost`."""

    def __init__(self, spec: Group) -> None:
        """Start the ranks. Raises ConfigError if this system cannot run them."""
        if sys.platform != "linux":
            raise ConfigError("tensor_parallel_size above 1 is built for Linux only; leave it out")
        memory = os.memfd_create("splitfuse-ranks")
        self.parallel = spec.join(memory, rank=0, limit_s=_LIMIT_S)
        if self.parallel.group is None:
            raise ConfigError("tensor parallelism needs the native CPU library: install g++, then start again")
        self._state = _State(self.parallel.group)
        self._is_together = False
        self._pipes: list[Connection] = []
        for rank in range(1, spec.size):
            ours, theirs = Pipe()
            self._pipes.append(ours)
            watcher = threading.Thread(
                target=_live, args=(self._state, rank, spec, memory, theirs), daemon=True,
                name=f"splitfuse-rank-{rank}",
            )  # fmt: skip
            watcher.start()
        self._state.started(spec.size - 1)
        os.close(memory)
        self.end: Callable[[], object] = weakref.finalize(self, self._state.end)

    def tell(self, *message: Any) -> None:
        """Send a message to all ranks, except within `together`. Raises RankLostError."""
        if self._is_together:
            return
        data = ForkingPickler.dumps(message)
        try:
            for pipe in self._pipes:
                pipe.send_bytes(data)
        except OSError as exc:
            raise self._state.lost("a rank reads nothing any more") from exc

    def connect(self) -> None:
        """Wait until all ranks have loaded, and meet them. Raises RankLostError."""
        self.answers()
        with self._failing("the ranks cannot meet"):
            self.parallel.group.connect()

    def answers(self) -> list[Any]:
        """Wait until all ranks have answered the last message. Raises RankLostError with a rank's error."""
        found = []
        for rank, pipe in enumerate(self._pipes, 1):
            try:
                error, answer = pipe.recv()
            except (OSError, EOFError) as exc:
                raise self._state.lost(f"rank {rank} has ended") from exc
            if error is not None:
                raise self._state.lost(f"rank {rank}: {error}")
            found.append(answer)
        return found

    def forward(self, step: Step) -> AbstractContextManager[None]:
        """Tell the ranks of a forward pass: the arrays that the model reads, and the graph that serves it."""
        ragged, graph = step.inputs.ragged, None
        if step.graph is not None:
            graph = step.graph.graphs.is_mixed, step.graph.size
        return self.step("forward", *step.arrays, (ragged.num_decodes, ragged.max_query_len, ragged.max_seq_len), graph)

    def capture(self, size: int, *, is_mixed: bool) -> AbstractContextManager[None]:
        """Tell the ranks of the capture of a graph."""
        return self.step("capture", size, is_mixed)

    @contextmanager
    def step(self, *message: Any) -> Iterator[None]:
        """Have the ranks do the same work as the block. Raises RankLostError, also if the block fails."""
        self.tell(*message)
        with self._failing("rank 0 failed within a step"):
            yield
        if reason := self.parallel.group.failure():
            raise self._state.lost(reason)

    @contextmanager
    def together(self, *message: Any) -> Iterator[None]:
        """Have the ranks make the block's call, with every call within it; these send no messages of their own."""
        self.tell(*message)
        self._is_together = True
        try:
            yield
        finally:
            self._is_together = False

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as exc:
            raise self._state.failed(f"{what} ({type(exc).__name__}: {exc})") from exc

    def on_lost(self, call: Callable[[RankLostError], object]) -> None:
        """Have `call` called when a rank is lost, in any thread, perhaps at once."""
        self._state.on_lost(call)


class _State:
    """State that the watchers and rank 0 share."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._lock = threading.Lock()
        self._start = threading.Semaphore(0)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._error: RankLostError | None = None
        self._is_lost = threading.Event()
        self._is_ending = False
        self._calls: list[Callable[[RankLostError], object]] = []

    def add(self, process: "subprocess.Popen[bytes] | None") -> None:
        """Note the process of a rank, or None if it could not be started."""
        with self._lock:
            if process is not None:
                self._processes.append(process)
        self._start.release()

    def started(self, count: int) -> None:
        for _ in range(count):
            self._start.acquire()

    def lost(self, reason: str) -> RankLostError:
        with self._lock:
            is_first, error = self._error is None, self._error or RankLostError(f"{reason}; the engine stops")
            self._error, calls = error, self._calls
            self._is_lost.set()
        if is_first:
            self._kill()
            if not self._is_ending:
                for call in calls:
                    call(error)
        return error

    def failed(self, reason: str) -> RankLostError:
        """Like `lost`, after a failure of rank 0, for which a lost rank may be the reason."""
        self._is_lost.wait(_NOTICE_S)
        return self.lost(reason)

    def on_lost(self, call: Callable[[RankLostError], object]) -> None:
        with self._lock:
            self._calls = [*self._calls, call]
            error = self._error
        if error is not None:
            call(error)

    def end(self) -> None:
        """End all ranks."""
        self._is_ending = True
        self._kill()

    def _kill(self) -> None:
        with self._lock:
            for process in self._processes:
                process.kill()
        self._group.stop()


def _live(state: _State, rank: int, spec: Group, memory: int, pipe: Connection) -> None:
    """Start a rank and watch it to its end. The kernel ends the rank together with this thread, which started it."""
    numbers = [rank, os.getpid(), memory, pipe.fileno()]
    own = environment(rank) if spec.backend.startswith("nccl") else {}
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, *map(str, numbers), *spec.to_arguments()],
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(memory, pipe.fileno()),
            process_group=0,  # Ctrl-C in the terminal reaches rank 0 only
        )
    except OSError as exc:
        state.lost(f"rank {rank} cannot be started ({exc})")
        state.add(None)
        return
    state.add(process)
    pipe.close()  # only the rank has this end now, so rank 0 sees when it closes
    state.lost(f"rank {rank} {_watch(process)}")
    process.wait()  # a stopped one has been killed now


def _watch(process: "subprocess.Popen[bytes]") -> str:
    """Wait until the process has ended, or has been stopped for _STOPPED_S, and return a text that says so."""
    import time

    while True:
        status = os.waitid(os.P_PID, process.pid, _WAYS)
        if status is None or status.si_code not in (os.CLD_STOPPED, os.CLD_TRAPPED):
            code = process.wait()
            return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"has ended with exit code {code}"
        time.sleep(_STOPPED_S)
        if os.waitid(os.P_PID, process.pid, _WAYS | os.WNOHANG) is not None and process.returncode is None:
            return "is stopped"
