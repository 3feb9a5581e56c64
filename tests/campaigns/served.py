"""Served: `splitfuse serve` in a process of its own, with its log in a file, observed from outside."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
from forked_process import ForkedProcess

from splitfuse.client.hosts import free_port

SERVE = (sys.executable, "-P", "-m", "splitfuse.server")
DEMO = {"SPLITFUSE_MODEL": "demo"}


@dataclass(frozen=True)
class Usage:
    """Resources of a process. `rss_mb`: MiB of private memory."""

    rss_mb: float
    num_fds: int
    num_threads: int


class Served:
    """Server process that the constructor starts; the `with` block begins when the server is ready, and ends it."""

    def __init__(
        self,
        *args: str,
        program: Sequence[str] = SERVE,
        env: Mapping[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
        port: int | None = None,
        stdout: str | None = None,
        stderr: int | None = None,
        is_forked: bool = False,
    ) -> None:
        """Start; `program` takes the arguments of `splitfuse`; `prepare` runs in the new process before it.

        A forked server has its modules from the start, and takes only `args` and `port`.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="splitfuse-")
        self._banner = Path(stdout or f"{self._folder.name}/stdout")
        self._log = Path(self._folder.name, "stderr")
        with self._banner.open("wb") as out, self._log.open("wb") as log:
            self.port = free_port("127.0.0.1") if port is None else port
            command = ["serve", "--port", str(self.port), *args]
            self.process: subprocess.Popen[bytes] | ForkedProcess = (
                ForkedProcess(["-m", "splitfuse.server", *command], stdout=out.fileno(), stderr=log.fileno(), env=DEMO)
                if is_forked
                else subprocess.Popen(
                    [*program, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=log if stderr is None else stderr,
                    env={**os.environ, **DEMO, **(env or {})},
                    preexec_fn=prepare,
                )
            )

    def __enter__(self) -> Self:
        return self.until_ready()

    def __exit__(self, *exc_info: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self._folder.cleanup()

    def until_ready(self, *, seconds: float = 240.0) -> Self:
        """Wait until ready. Raises RuntimeError with the log if the server ends or takes longer."""
        deadline = time.monotonic() + seconds
        with self.client(timeout=2.0) as client:  # one for all: to make one takes as long as a hundred questions
            while time.monotonic() < deadline and self.process.poll() is None:
                with contextlib.suppress(httpx.HTTPError):
                    if client.get("/ready").status_code == 200:
                        return self
                time.sleep(0.05)
        self.process.kill()
        raise RuntimeError(f"the server is not ready (exit {self.process.poll()}): {self.log[-2000:]}")

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """Text of stderr so far."""
        return self._log.read_text("utf-8", "replace")

    def client(self, *, timeout: float = 60.0) -> httpx.Client:
        """Return an HTTP client for sequential requests."""
        return httpx.Client(base_url=self.url, timeout=timeout, trust_env=False)

    def status(self, path: str, *, timeout: float = 5.0) -> int | None:
        """Return the status of a GET; None if there is no answer in time."""
        try:
            return httpx.get(self.url + path, timeout=timeout, trust_env=False).status_code
        except httpx.HTTPError:
            return None

    def stats(self, *, key: str | None = None) -> dict[str, Any]:
        """Return the JSON of GET /stats."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        stats: dict[str, Any] = httpx.get(self.url + "/stats", headers=headers, timeout=30.0, trust_env=False).json()
        return stats

    def until_idle(self, *, seconds: float = 60.0, key: str | None = None) -> dict[str, Any]:
        """Return statistics once nothing runs or waits and every block is free. Raises AssertionError after a limit."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            stats = self.stats(key=key)
            if stats["num_running"] == stats["num_waiting"] == stats["num_used_blocks"] == 0:
                return stats
            time.sleep(0.1)
        raise AssertionError(f"still busy: {json.dumps({k: v for k, v in stats.items() if k.startswith('num_')})}")

    def usage(self) -> Usage:
        """Return the current resources of the process."""
        folder = Path("/proc", str(self.process.pid))
        own = re.search(r"RssAnon:\s+(\d+) kB", (folder / "status").read_text())
        assert own is not None
        return Usage(int(own[1]) / 1024, len(list((folder / "fd").iterdir())), len(list((folder / "task").iterdir())))

    def connect(self, *, timeout: float = 10.0) -> socket.socket:
        """Open a raw connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def signal(self, number: int) -> None:
        """Send the server a signal."""
        self.process.send_signal(number)

    def wait(self, seconds: float) -> int | None:
        """Return the exit code; None if the server has not ended in time."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
