"""Peers as child processes, each in a venv of its own, all stopped but the one at work."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

PEERS_FOLDER = Path(os.environ.get("SPLITFUSE_PEERS") or Path.home() / ".cache/splitfuse/peers")
_WORKER = Path(__file__).with_name("worker.py")
_END_S = 20.0
# vLLM's CPU build: gigabytes of KV cache, and the cores of its threads. All other peers keep their defaults.
ENVIRONMENT: dict[str, dict[str, str]] = {
    "vllm": {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "0-1", "VLLM_NO_USAGE_STATS": "1"}
}


def end_children_on_sigterm() -> None:
    """Leave `with` blocks at SIGTERM too (`timeout`, say): a stopped process of another group would stay for ever."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def python_of(peer: str) -> str:
    """Return the peer's interpreter, which is this one for splitfuse and transformers. Raises FileNotFoundError."""
    venv = PEERS_FOLDER / peer
    if _is_here(peer):
        return sys.executable
    if not (venv / "bin/python").exists():
        raise FileNotFoundError(f"{venv} has no peer; make it: tests/bench/peers/setup.sh {peer}")
    return str(venv / "bin/python")


def _is_here(peer: str) -> bool:
    return peer.partition("@")[0] == "splitfuse" or peer.startswith("transformers")


def environment_of(peer: str) -> dict[str, str]:
    """Return a peer's environment: this process's, for other peers without this project's import path.

    "splitfuse@COMMIT" is this project at an earlier commit.
    """
    environment = {**os.environ, **ENVIRONMENT.get(peer, {})}
    if commit := peer.partition("@")[2]:
        environment["PYTHONPATH"] = f"{_folder_of(commit)}:{environment.get('PYTHONPATH', '')}"
    elif not _is_here(peer):
        environment.pop("PYTHONPATH", None)
        environment["PATH"] = f"{PEERS_FOLDER / peer / 'bin'}:{environment['PATH']}"
    return environment


def _folder_of(commit: str) -> Path:
    """Return a folder with the package `splitfuse` of a commit, written unless it exists."""
    commit = subprocess.run(["git", "rev-parse", commit], check=True, capture_output=True, text=True).stdout.strip()
    folder = PEERS_FOLDER / "commits" / commit
    if not folder.exists():
        unfinished = folder.with_name(f"{commit}.{os.getpid()}")
        (unfinished / "splitfuse").mkdir(parents=True)
        archive = subprocess.run(["git", "archive", commit], check=True, capture_output=True).stdout
        subprocess.run(["tar", "x", "-C", str(unfinished / "splitfuse")], input=archive, check=True)
        unfinished.rename(folder)
    return folder


class PeerProcess:
    """Process and its children, in a group that can be stopped and continued as one; the `with` block ends it."""

    def __init__(self, peer: str, command: list[str], **pipes: Any) -> None:
        self.peer = peer
        self.log = tempfile.TemporaryFile("w+b")  # noqa: SIM115
        self.start_time = time.monotonic()
        self.process = subprocess.Popen(
            command, stderr=self.log, start_new_session=True, env=environment_of(peer), **pipes
        )

    def age(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.start_time

    def rest(self) -> None:
        """Stop, and take no processor time until `wake`."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Continue."""
        self._signal(signal.SIGCONT)

    def last_words(self) -> str:
        """Return the end of the log."""
        self.log.seek(0)
        return self.log.read()[-3000:].decode("utf-8", "replace")

    def stop(self) -> None:
        """Ask the process to end, then kill it with all its children."""
        self.wake()
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)
        self._signal(signal.SIGKILL)
        self.process.wait()
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class LineWorker(PeerProcess):
    """Process that answers one JSON line per JSON line."""

    def __init__(self, peer: str, script: Path, *arguments: str) -> None:
        command = [python_of(peer), str(script), *arguments]
        super().__init__(peer, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def exchange(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer. Raises RuntimeError with the log's end if the process ended."""
        self.wake()
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(question), file=stdin, flush=True)
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"{self.peer} ended:\n{self.last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Worker(LineWorker):
    """Process of worker.py with one peer."""

    def __init__(self, peer: str, folder: Path, largest: Mapping[str, int], settings: Mapping[str, Any]) -> None:
        super().__init__(peer, _WORKER, peer, str(folder), json.dumps(largest), json.dumps(settings))
        self.first_seconds: float | None = None  # of the last prompts until all first tokens, if the peer tells it

    def ask(self, prompts: list[list[int]], output_len: int) -> tuple[float, list[list[int]]]:
        """Run prompts. Returns seconds and outputs. Raises RuntimeError with the log's end if the process ended."""
        answer = self.exchange({"prompts": prompts, "output_len": output_len})
        assert all(len(output) == output_len for output in answer["outputs"]), self.peer
        self.first_seconds = answer["first_seconds"]
        return answer["seconds"], answer["outputs"]
