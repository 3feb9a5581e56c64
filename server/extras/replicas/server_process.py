"""ServerProcess: a `splitfuse serve` on this machine. Its settings and keys do not appear in lists of processes."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from typing import Self

from ....engine.config.setting import ENV_PREFIX
from ...commands.settings_sources import REPLICA_VARIABLE
from .placement import Address
from .tied_process import tied

_SERVE = ("-P", "-m", "splitfuse.server", "serve", "--config", "/dev/stdin")
# Set by the machine; our other variables are settings that would override the file.
_KEPT = {"SPLITFUSE_NATIVE", "SPLITFUSE_RUNTIME_DIR"}


class ServerProcess:
    """Server process that ends with this one.

    It has its own session, so Ctrl-C reaches it only through this process.
    """

    def __init__(self, process: asyncio.subprocess.Process, address: Address) -> None:
        self._process = process
        self.address = address

    @classmethod
    async def start(
        cls, name: str, config: str, *, host: str, env: Mapping[str, str] | None = None, end: int = signal.SIGTERM
    ) -> Self:
        """Start the replica of this name on a free port of this address. `config` is the text of a config file.

        `end`: signal that it gets when this process has died. Raises OSError.
        """
        address = Address(host, _free_port(host))
        with tempfile.TemporaryFile("w+") as file:
            file.write(config)
            file.seek(0)
            process = await asyncio.create_subprocess_exec(
                *tied([sys.executable, *_SERVE, "--host", host, "--port", str(address.port)], end=end),
                stdin=file,
                env=environment() | {REPLICA_VARIABLE: name} | dict(env or {}),
                start_new_session=True,
            )
        return cls(process, address)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    async def wait(self) -> int:
        """Wait for the exit code, which is minus the signal's number if a signal ended the process."""
        return await self._process.wait()

    async def stop(self) -> None:
        """Send SIGTERM: the server drains, then ends."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    async def close(self) -> None:
        """Kill the process if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


def environment() -> dict[str, str]:
    """Return the environment for programs that this process starts: its own, without settings."""
    return {name: value for name, value in os.environ.items() if name in _KEPT or not name.startswith(ENV_PREFIX)}


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as probe:
        return int(probe.getsockname()[1])
