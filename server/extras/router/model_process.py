"""ModelProcess: one model's server process, on a Unix socket, from its start to its end."""

import asyncio
import contextlib
import json
import signal
from pathlib import Path
from typing import Any

from ...process.runtime_file import RUNTIME_VARIABLE
from ..replicas.server_process import ServerProcess
from .catalog import Entry
from .connections import LOST, Connections

_ASK_S = 0.03  # between questions to a server that starts
_ANSWER_S = 5.0


class ModelProcess:
    """One process. Its server checks keys as if it were alone."""

    def __init__(self, entry: Entry, folder: Path) -> None:
        """`folder` takes the files of running servers, so that `splitfuse ps` shows the router alone."""
        self.watchers = set[asyncio.Task[Any]]()  # streams of figures, which end with the process
        self.ended = asyncio.Event()  # set once its place is free
        self._entry = entry
        self._folder = folder
        self._process: ServerProcess | None = None
        self.connections = Connections(str(entry.settings.uds))

    @property
    def pid(self) -> int | None:
        """Id of the process, None before its start."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process. Raises OSError."""
        env = {RUNTIME_VARIABLE: str(self._folder)}
        name, config = self._entry.name, self._entry.config()
        # Without a router nobody hears the answers, and the next one needs the file of results at once.
        self._process = await ServerProcess.start(name, config, host="127.0.0.1", env=env, end=signal.SIGKILL)

    async def until_ready(self) -> None:
        """Wait until the server takes requests, and note what it says of its model."""
        while True:
            with contextlib.suppress(*LOST):
                if (await self.get("/ready"))[0] == 200:
                    break
            await asyncio.sleep(_ASK_S)
        self._entry.listed = {"openai": await self._list("/v1/models", "data")}
        if getattr(self._entry.settings, "ollama_api", False):
            self._entry.listed |= {"ollama": await self._list("/api/ps", "models")}

    async def wait(self) -> int:
        """Wait for the exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def num_unfinished(self) -> int | None:
        """Return the number of requests and batches that have not ended; None without an answer."""
        with contextlib.suppress(*LOST, ValueError, LookupError):
            _, body = await self.get("/health")
            return int(json.loads(body)["num_unfinished"])
        return None

    async def stop(self, limit_s: float) -> None:
        """End the process: its server drains, and is killed after this time."""
        for task in list(self.watchers):
            task.cancel()
        if self._process is not None:
            await self._process.stop()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), limit_s)
            await self._process.close()

    async def close(self) -> None:
        """Kill the process if it still runs."""
        if self._process is not None:
            await self._process.close()
        self.connections.close()

    async def get(self, path: str) -> tuple[int, bytes]:
        """Ask with a key of ours; return the status and the body. Raises one of LOST."""
        settings = self._entry.settings
        headers = [(b"host", b"localhost")]
        for key in (*settings.admin_keys, *settings.keys)[:1]:
            headers.append((b"authorization", f"Bearer {key}".encode()))
        async with asyncio.timeout(_ANSWER_S), self.connections.ask("GET", path.encode(), headers) as answer:
            return answer.status, b"".join([chunk async for chunk in answer.chunks()])

    async def _list(self, path: str, field: str) -> list[dict[str, Any]]:
        """Return the objects of a list; [] without one."""
        with contextlib.suppress(*LOST, ValueError, LookupError):
            return list(json.loads((await self.get(path))[1])[field])
        return []
