"""Runs the server for tests: an app in the test's own loop, or the command in a process; reads event streams."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from forked_process import ForkedProcess
from uvicorn.server import ServerState

from splitfuse.server.process.http_server import uvicorn_config


@contextlib.asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    """Yield the app's URL. Like uvicorn.Server, but without its polling loops of 0.1 s."""
    config = uvicorn_config(app)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    async with app.router.lifespan_context(app):
        server = await loop.create_server(
            lambda: config.http_protocol_class(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for connection in list(state.connections):
                connection.transport.abort()
            if state.tasks:
                await asyncio.wait(state.tasks, timeout=60)


@contextlib.asynccontextmanager
async def ready_client(app: FastAPI, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of the app's server once its model is loaded. `options`: the client's."""
    async with serving(app) as url, httpx.AsyncClient(base_url=url, **{"timeout": 70, **options}) as client:
        await app.state.service.lifecycle.loading
        yield client


def parse_events(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream: id, event, data (decoded). Comments are left out."""
    events = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line and not line.startswith(":"))
        if fields:
            data = fields["data"]
            events.append({**fields, "data": data if data == "[DONE]" else json.loads(data)})
    return events


async def stream_events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Yield the events as they come."""
    text = ""
    async for part in response.aiter_text():
        text += part
        while "\n\n" in text:
            block, text = text.split("\n\n", 1)
            for event in parse_events(block):
                yield event


class ServerProcess:
    """`splitfuse serve` in a process of its own, on any free port. Leaving the `with` block ends it."""

    def __init__(
        self,
        *args: str,
        env: dict[str, str] | None = None,
        wrapper: Sequence[str] = (),
        program: Sequence[str] = ("-m", "splitfuse.server"),
        is_forked: bool = True,
    ) -> None:
        """Forked, it has its modules from the start; not where a `wrapper` or `env` may change what they are."""
        # One thread: the tests share their cores, and a barrier between threads that do not run costs most of a step.
        self._args = args
        command = [*program, "serve", "--port", "0", "--num-threads", "1", *args]
        self.process = (
            subprocess.Popen(
                [*wrapper, sys.executable, *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            )
            if wrapper or env or not is_forked
            else ForkedProcess(command)
        )
        self.banner = ""

    def __enter__(self) -> "ServerProcess":
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.banner += line
            if "curl" in line:
                return self
        raise AssertionError(f"the server ended: {self.process.communicate()}")

    def __exit__(self, *exc_info: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    @property
    def url(self) -> str:
        """URL of the server."""
        match = re.search(r"http://[\d.]+:\d+", self.banner)
        assert match is not None, self.banner
        return match[0]

    @cached_property
    def pids(self) -> list[int]:
        """Ids of the server's process and, behind a front, of the engine's that runs first."""
        has_front = "--api-server-count" in self._args and self._args[self._args.index("--api-server-count") + 1] != "0"
        return [self.process.pid, *([self.engine_pid] if has_front else [])]

    @property
    def engine_pid(self) -> int:
        """Id of the engine's process behind a front. Raises AssertionError while there is none."""
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
                arguments = (path / "cmdline").read_bytes().split(b"\0")
                if int(parent) == self.process.pid and any(b"/splitfuse-" in item for item in arguments[-3:]):
                    return int(path.name)
        raise AssertionError("the front has no process for the engine")

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait(self) -> tuple[int, str]:
        """Exit code and what stood on stderr."""
        _, stderr = self.process.communicate(timeout=240)
        return self.process.returncode, stderr


class SlowSteps:
    """Switch, on at first, that has a server's jobs outlast what a test does meanwhile, on however busy a machine."""

    def __init__(self, folder: Path, *, after: int = 20) -> None:
        """`after`: output tokens of a request from which on steps are slow."""
        self._after, self._path = after, folder / "steps are slow"
        self.program = (str(Path(__file__).parent / "slow_at.py"), str(after), str(self._path))
        self.on()

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Slow the steps of this process's engines."""
        from slow_at import ModelRunner, slow_down  # here: imports torch

        monkeypatch.setattr(ModelRunner, "run", ModelRunner.run)
        slow_down(self._after, self._path)

    def on(self) -> None:
        self._path.touch()

    def off(self) -> None:
        self._path.unlink(missing_ok=True)


def run_cli(
    *args: str,
    stdin: str = "",
    env: dict[str, str] | None = None,
    is_forked: bool | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """`splitfuse …` to its end, forked unless `env` may change what its modules are, or as `is_forked` says."""
    command = ["-m", "splitfuse.server", *args]
    if is_forked or (is_forked is None and env is None):
        process = ForkedProcess(command, stdin=stdin, env=env)
        output = process.communicate(timeout)
        return subprocess.CompletedProcess(command, process.wait(), *output)
    return subprocess.run(
        [sys.executable, *command],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )


def run_at_hub(url: str, home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """`splitfuse …` with this hub and home of its cache. Forked: hubs' modules are imported after the fork."""
    return run_cli(*args, env={"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}, is_forked=True)


def is_one_line(stderr, *texts):
    lines = stderr.splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("splitfuse: error: ")
    for text in texts:
        assert text in lines[0]


def one_line(result, *texts):
    """Assert that a command ended with exit 2 and one line on stderr that holds the texts."""
    assert result.returncode == 2, result
    assert result.stdout == ""
    is_one_line(result.stderr, *texts)
