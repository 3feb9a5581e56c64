"""PoolingServer: keeps the second model's server running, and asks it."""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from ....engine.errors import ConfigError
from ...http.errors import NotReadyError
from ..replicas.placement import Address
from ..replicas.server_process import ServerProcess
from . import PoolingModelSettings

logger = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_ASK_S = 0.1
_REST_S = 1.0  # from a refusal to the next try
_USAGE_ERROR = 2  # wrong setting or model that cannot be loaded: another start would end the same way
_PAUSES_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
_LIVED_S = 60.0  # lifetime after which a server is started again at once
# Weight of 36, against 1,024 of each thread of usual priority. As an idle task the process was ready after 212 s at a
# load of 11 (2026-11-29). With a niceness of 10, a weight of 110, eight chats of SmolLM2 on two cores fell to 0.58 of
# their rate (2026-11-26).
_NICENESS = 15


class PoolingServer:
    """A server process with successors: the next one starts when one has ended."""

    def __init__(self, settings: PoolingModelSettings) -> None:
        self.models: tuple[Mapping[str, Any], ...] = ()  # its entries of /v1/models; empty until it has answered
        self._settings = settings
        self._key = secrets.token_urlsafe(32) if settings.keys else None
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=5.0), limits=httpx.Limits(max_connections=None), trust_env=False
        )
        self._process: ServerProcess | None = None
        self._num_posts = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_ending = False
        # Of a server that answers.
        self._address: asyncio.Future[Address] | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Id of the process that runs now."""
        return None if self._process is None else self._process.pid

    def begin(self) -> None:
        """Start the process in a task."""
        if self._running is None:
            self._address = asyncio.get_running_loop().create_future()
            self._running = asyncio.create_task(self._run())

    async def is_up(self) -> Address:
        """Return the address when the server answers. Raises ConfigError if the model cannot be loaded, NotReadyError
        at the end.
        """
        assert self._address is not None
        assert self._running is not None
        while not self._address.done():
            ends: list[asyncio.Future[Any]] = [self._address, self._running]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self._is_ending:
                raise _ending()
            if self._running.done():
                self._running.result()
        return self._address.result()

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
        """Send a POST, once the server answers. Sends our own key if the client has none. Raises NotReadyError.

        A refusal is tried again: the process ends, or was stopped or without a core for so long that it looks stalled.
        """
        own = {} if headers or self._key is None else {"authorization": f"Bearer {self._key}"}
        headers = {"accept-encoding": "identity", **own, **headers}
        self._num_posts += 1
        self._is_idle.clear()
        try:
            while True:
                answer = await self._post(path, body, headers)
                if answer is not None and answer.status_code != 503:
                    return answer
                await asyncio.sleep(_REST_S)
        finally:
            self._num_posts -= 1
            if not self._num_posts:
                self._is_idle.set()

    async def _post(self, path: str, body: bytes, headers: Mapping[str, str]) -> httpx.Response | None:
        """Return the answer, None if no connection could be made."""
        address = await self.is_up()
        try:
            return await self._client.post(f"http://{address}{path}", content=body, headers=headers)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            return None
        except httpx.HTTPError as exc:  # not sent again: this request may have ended the process
            if self._is_ending:
                raise _ending() from exc
            raise NotReadyError("the embedding model's process has ended; it starts again", code="failing") from exc

    async def finish(self, seconds: float) -> None:
        """End the server once the POSTs so far are answered, or after this time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_idle.wait()
        await self.stop()

    async def stop(self) -> None:
        """End the server. POSTs that wait raise NotReadyError."""
        self._is_ending = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        await self._is_idle.wait()
        await self._client.aclose()

    async def _run(self) -> None:
        """Keep a server running. Raises ConfigError if the first one cannot load the model."""
        num_short_lives = 0
        while True:
            begin = time.monotonic()
            try:
                code = await self._live()
            except OSError as exc:  # no memory or descriptors for a process
                end = str(exc)
            else:
                end = f"exit code {code}"
                if code == _USAGE_ERROR and not self.models:
                    raise ConfigError("the embedding model could not be loaded; the line above says why")
            num_short_lives = 0 if time.monotonic() - begin > _LIVED_S else num_short_lives + 1
            pause = _PAUSES_S[min(num_short_lives, len(_PAUSES_S) - 1)]
            logger.error("the embedding model's process has ended (%s); it starts again in %g s", end, pause)
            await asyncio.sleep(pause)

    async def _live(self) -> int:
        """Run one server to its end."""
        self._process = process = await ServerProcess.start("embeddings", self._config(), host=_HOST)
        try:
            asking = asyncio.create_task(self._ask(process))
            try:
                return await process.wait()
            finally:
                asking.cancel()
                if self._address is not None and self._address.done():
                    self._address = asyncio.get_running_loop().create_future()
        finally:
            self._process = None
            await process.close()

    async def _ask(self, process: ServerProcess) -> None:
        """Note the address once the server is ready. Until then the process has the usual priority."""
        address = process.address
        headers = {} if self._key is None else {"authorization": f"Bearer {self._key}"}
        while True:
            with contextlib.suppress(httpx.HTTPError, ValueError, LookupError):
                if (await self._client.get(f"http://{address}/ready", timeout=5.0)).status_code == 200:
                    listed = await self._client.get(f"http://{address}/v1/models", headers=headers, timeout=5.0)
                    self.models = tuple(listed.json()["data"])
                    assert self._address is not None
                    _give_way(process.pid)
                    self._address.set_result(address)
                    return
            await asyncio.sleep(_ASK_S)

    def _config(self) -> str:
        """Return the text of the config file, as JSON, which is YAML."""
        settings = self._settings
        own = () if self._key is None else (self._key,)
        values = {"model": settings.embedding_model, "device": "cpu", "api_key": (*settings.keys, *own)}
        for name in ("log_format", "max_body_bytes", "num_threads", "strict_fields", "drain_timeout"):
            values[name] = getattr(settings, name)
        return json.dumps(values)


def _ending() -> NotReadyError:
    return NotReadyError("the server is shutting down", code="draining")


def _give_way(pid: int) -> None:
    """Leave the first model's threads most of the time, also where Linux groups processes by session."""
    threads = Path(f"/proc/{pid}/task")
    for thread in [pid, *(int(path.name) for path in threads.iterdir())] if threads.exists() else [pid]:
        with contextlib.suppress(OSError):  # the thread has ended
            os.setpriority(os.PRIO_PROCESS, thread, _NICENESS)
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(_NICENESS))
