"""Haproxy: the process that every request passes through, and its runtime API, which adds replicas."""

import asyncio
import contextlib
import logging
import shutil
from pathlib import Path

from ....engine.errors import ConfigError
from .haproxy_config import HaproxyConfig
from .placement import Address
from .server_process import environment
from .tied_process import tied

logger = logging.getLogger(__name__)

_RESTART_S = 1.0
_START_S = 60.0
# Replies of the runtime API to an accepted address. An accepted state has no reply.
_ACCEPTED_REPLIES = ("changed from", "no need to change")


class Haproxy:
    """HAProxy process.

    It starts without replicas; `point` adds one. If it ends, it is restarted with the same addresses.
    """

    def __init__(self, config: HaproxyConfig) -> None:
        self._config = config
        self._log = Path(config.folder, "haproxy.log")
        self._addresses: dict[str, Address] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._is_stopping = False

    async def start(self) -> None:
        """Start HAProxy and wait for its runtime API. Raises ConfigError if it is not installed or refuses its file."""
        program = shutil.which("haproxy")
        if program is None:
            raise ConfigError("--replicas needs HAProxy: apt-get install haproxy")
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *tied([program, "-db", "-f", self._write_config()]),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                pass_fds=(self._config.listener_fd,),
                start_new_session=True,
            )
        await self._until_up(self._process)

    async def run(self) -> None:
        """Watch HAProxy until `stop`. Raises ConfigError if it cannot be restarted."""
        while self._process is not None:
            code = await self._process.wait()
            if self._is_stopping:
                return
            logger.error("HAProxy has ended with exit code %d; it is started again", code)
            await asyncio.sleep(_RESTART_S)
            await self.start()

    async def stop(self) -> None:
        """End HAProxy and its open connections."""
        self._is_stopping = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            await self._process.wait()

    async def point(self, name: str, address: Address) -> None:
        """Set a replica's address. The replica gets requests as soon as its check succeeds."""
        self._addresses[name] = address
        places = [
            f"set server {backend}/{name} addr {address.host} port {address.port}" for backend in self._config.backends
        ]
        await self._ask(*places, f"set server any/{name} health down", *self._states(name, "ready"))

    async def remove(self, name: str) -> None:
        """Remove a replica for good, and its ids."""
        self._addresses.pop(name, None)
        await self._ask(*self._states(name, "maint"))

    def _write_config(self) -> str:
        """Write the config file and return its path."""
        path = Path(self._config.folder, "haproxy.cfg")
        path.write_text(self._config.text(self._addresses), encoding="utf-8")
        return str(path)

    def _states(self, name: str, state: str) -> list[str]:
        return [f"set server {backend}/{name} state {state}" for backend in ("any", "ids")]

    async def _ask(self, *commands: str) -> None:
        """Send commands.

        Raises RuntimeError if HAProxy refuses one. During a restart do nothing: the new file has the same content.
        """
        try:
            reader, writer = await asyncio.open_unix_connection(self._config.admin_socket)
        except OSError:
            return
        writer.write(";".join(commands).encode() + b"\n")
        answer = (await reader.read()).decode()
        writer.close()
        wrong = [line for line in answer.splitlines() if line and not any(reply in line for reply in _ACCEPTED_REPLIES)]
        if wrong:
            raise RuntimeError(f"HAProxy refuses {commands}: {wrong}")

    async def _until_up(self, process: asyncio.subprocess.Process) -> None:
        async with asyncio.timeout(_START_S):
            while process.returncode is None:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_unix_connection(self._config.admin_socket)
                    writer.close()
                    return
                await asyncio.sleep(0.02)
        raise ConfigError(f"HAProxy cannot start: {' '.join(self._log.read_text('utf-8').split())}")
