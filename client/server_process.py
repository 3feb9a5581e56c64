"""Server as a child process: starts on a free port, is awaited until ready, stops with its owner."""

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

from .base import first_key
from .client import Client
from .errors import ServerStartError
from .hosts import free_port, in_url, reachable

PORT_TRIES = 3  # another process can take the free port before the server binds to it
PROBE_TIMEOUT_S = 2.0  # timeout of a GET /ready
PROBE_INTERVAL_S = 0.1  # pause between two probes
_COMMAND = (sys.executable, "-m", "splitfuse.server", "serve")


def serve(
    model: str | os.PathLike[str] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    ready_timeout: float = 300.0,
    env: Mapping[str, str] | None = None,
    **flags: Any,
) -> "Server":
    """Start `splitfuse serve` and return once it is ready; without a model it is smollm2 if installed, else the demo.

    `flags` are the command's own: max_num_seqs=8, enable_prefix_caching=False, api_key="…". `env` is added to this
    process's environment. Raises ServerStartError with the server's last line when it ends or takes too long.
    """
    if port and _is_taken(host, port):  # the other server's /ready would pass for this one's
        raise ServerStartError(f"port {port} of {host} is in use; leave `port` out and a free one is taken")
    environment = _environment(env or {}, flags.pop("api_key", None))
    for tries_left in range(1 if port else PORT_TRIES, 0, -1):
        chosen = port or free_port(host)
        command = [*_COMMAND, *_arguments(model, flags | {"host": host, "port": chosen})]
        server = Server(command, base_url=f"http://{in_url(reachable(host))}:{chosen}", env=environment)
        try:
            server.wait_until_ready(ready_timeout)
            return server
        except ServerStartError as error:
            server.stop()
            if tries_left == 1 or "in use" not in error.message:
                raise
        except BaseException:
            server.stop()
            raise
    raise AssertionError("unreachable")


class Server:
    """Running server process: a context manager, or call `stop()`. The server does not outlive this process."""

    def __init__(self, command: list[str], *, base_url: str, env: Mapping[str, str]) -> None:
        self.base_url = base_url
        self.client = Client(base_url, api_key=first_key(env.get("SPLITFUSE_API_KEY", "")))
        self._files = contextlib.ExitStack()
        # append mode: a read here must not move the server's write position
        self._stdout = self._files.enter_context(tempfile.TemporaryFile("a+b"))  # noqa: SIM115
        self._stderr = self._files.enter_context(tempfile.TemporaryFile("a+b"))  # noqa: SIM115
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._stdout, stderr=self._stderr, env=env
        )
        atexit.register(self.stop)

    def __repr__(self) -> str:
        state = "running" if self._process.poll() is None else f"ended with {self._process.returncode}"
        return f"Server({self.base_url!r}, {state})"

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def wait_until_ready(self, timeout: float) -> None:
        """Return when GET /ready answers 200. Raises ServerStartError."""
        until = time.monotonic() + timeout
        with Client(self.base_url, timeout=PROBE_TIMEOUT_S) as client:
            while not client.is_ready():
                if self._process.poll() is not None:
                    raise ServerStartError(
                        f"the server ended with exit status {self._process.returncode}: {self._last_line()}"
                    )
                if time.monotonic() > until:
                    raise ServerStartError(f"the server was not ready within {timeout:g} s: {self._last_line()}")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(PROBE_INTERVAL_S)

    def output(self) -> str:
        """Return the server's output so far: standard output, then standard error."""
        return _read(self._stdout) + _read(self._stderr)

    def stop(self, timeout: float = 60.0) -> int:
        """Let the server finish running requests and end; kill it after `timeout` seconds. Returns the exit status."""
        atexit.unregister(self.stop)
        self.client.close()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._files.close()
        return self._process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _last_line(self) -> str:
        lines = [line for line in _read(self._stderr).splitlines() if line.strip()]
        return lines[-1].strip() if lines else "it said nothing on standard error"


def _environment(env: Mapping[str, str], api_key: str | Sequence[str] | None) -> dict[str, str]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **env}
    if api_key is not None:  # in the environment: every user of the machine can read the command line
        environment["SPLITFUSE_API_KEY"] = api_key if isinstance(api_key, str) else ",".join(api_key)
    return environment


def _arguments(model: str | os.PathLike[str] | None, flags: Mapping[str, Any]) -> list[str]:
    arguments = [] if model is None else [str(model)]
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            for item in value if isinstance(value, list | tuple) else [value]:
                arguments += [f"--{flag}", str(item)]
    return arguments


def _is_taken(host: str, port: int) -> bool:
    try:
        socket.create_connection((reachable(host), port), timeout=PROBE_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _read(file: Any) -> str:
    file.seek(0)
    return bytes(file.read()).decode("utf-8", "replace")
