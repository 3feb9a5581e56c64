"""The only place that touches httpx: performs the actions of calls.py, once plainly and once with await.

A plain read cannot be cut short from outside, so a silent stream may outlast its call's deadline by one
read timeout; the asyncio wire keeps the deadline to the letter.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar, cast

import httpx

from .actions import Action, Open, Read, Send, Sleep, Steps, Submitted
from .errors import APITimeoutError, not_reachable
from .events import StreamEvent
from .messages import Answer

T = TypeVar("T")
LONGEST_CONNECT = 10.0  # seconds


@dataclass(frozen=True)
class Returned(Generic[T]):
    """What the steps returned, to tell it from what they emit on the way."""

    value: T


class Wire:
    """Performs one call's actions; holds at most one open connection."""

    def __init__(self, http: httpx.Client, sleep: Callable[[float], None] = time.sleep) -> None:
        self._http = http
        self._sleep = sleep
        self._response: httpx.Response | None = None
        self._chunks: Iterator[bytes] = iter(())

    def run(self, steps: Steps[T]) -> T:
        """Perform a call that emits nothing."""
        outcome = self.advance(steps)
        assert isinstance(outcome, Returned)
        return outcome.value

    def advance(self, steps: Steps[T], thrown: BaseException | None = None) -> StreamEvent | Submitted | Returned[T]:
        """Perform actions until the steps emit something or return; `thrown` goes in where they stand."""
        turn: Callable[[], Action] = partial(next, steps) if thrown is None else partial(steps.throw, thrown)
        while True:
            try:
                action = turn()
            except StopIteration as stop:
                return Returned(stop.value)
            if isinstance(action, StreamEvent | Submitted):
                return action
            try:
                turn = partial(steps.send, self._perform(action))
            except BaseException as error:
                turn = partial(steps.throw, error)

    def close(self) -> None:
        """Close the open connection, if there is one."""
        if self._response is not None:
            self._response.close()
            self._response = None

    def _perform(self, action: Action) -> Answer | bytes | None:
        try:
            match action:
                case Sleep(seconds):
                    self._sleep(seconds)
                    return None
                case Read():
                    return next(self._chunks, None)
                case Open():
                    return self._open(action)
                case Send():
                    return self._send(action)
        except httpx.RequestError as exc:
            _raise_translated(exc, self._http.base_url)
        raise AssertionError(f"unknown action {action}")

    def _send(self, action: Send) -> Answer:
        until = math.inf if action.timeout is None else time.monotonic() + action.timeout
        response = self._http.send(_built(self._http, action), stream=True)
        with contextlib.closing(response):
            content = bytearray()
            for chunk in response.iter_bytes():
                content += chunk
                if time.monotonic() > until:
                    raise httpx.ReadTimeout("the answer trickles")
        return _answer(response, bytes(content))

    def _open(self, action: Open) -> Answer:
        self.close()
        self._response = self._http.send(_built(self._http, action), stream=True)
        if self._response.status_code != 200:
            return _answer(self._response, self._response.read())
        self._chunks = self._response.iter_bytes()
        return _answer(self._response)


class AsyncWire:
    """The same with await."""

    def __init__(self, http: httpx.AsyncClient, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._http = http
        self._sleep = sleep
        self._response: httpx.Response | None = None
        self._chunks: AsyncGenerator[bytes, None] | None = None

    async def run(self, steps: Steps[T]) -> T:
        """Perform a call that emits nothing."""
        outcome = await self.advance(steps)
        assert isinstance(outcome, Returned)
        return outcome.value

    async def advance(
        self, steps: Steps[T], thrown: BaseException | None = None
    ) -> StreamEvent | Submitted | Returned[T]:
        """Perform actions until the steps emit something or return; `thrown` goes in where they stand."""
        turn: Callable[[], Action] = partial(next, steps) if thrown is None else partial(steps.throw, thrown)
        while True:
            try:
                action = turn()
            except StopIteration as stop:
                return Returned(stop.value)
            if isinstance(action, StreamEvent | Submitted):
                return action
            try:
                turn = partial(steps.send, await self._perform(action))
            except BaseException as error:
                turn = partial(steps.throw, error)

    async def close(self) -> None:
        """Close the open connection, if there is one."""
        if self._chunks is not None:
            await self._chunks.aclose()
            self._chunks = None
        if self._response is not None:
            await self._response.aclose()
            self._response = None

    async def _perform(self, action: Action) -> Answer | bytes | None:
        if isinstance(action, Sleep):
            await self._sleep(action.seconds)
            return None
        assert isinstance(action, Send | Open | Read)
        try:
            async with asyncio.timeout(action.timeout):
                return await self._exchange(action)
        except (httpx.RequestError, TimeoutError) as exc:
            _raise_translated(exc, self._http.base_url)

    async def _exchange(self, action: Send | Open | Read) -> Answer | bytes | None:
        match action:
            case Read():
                assert self._chunks is not None
                return await anext(self._chunks, None)
            case Open():
                return await self._open(action)
            case Send():
                response = await self._http.send(_built(self._http, action))
                return _answer(response, response.content)

    async def _open(self, action: Open) -> Answer:
        await self.close()
        self._response = await self._http.send(_built(self._http, action), stream=True)
        if self._response.status_code != 200:
            return _answer(self._response, await self._response.aread())
        self._chunks = cast(AsyncGenerator[bytes, None], self._response.aiter_bytes())
        return _answer(self._response)


def _built(http: httpx.Client | httpx.AsyncClient, action: Send | Open) -> httpx.Request:
    request, timeout = action.request, action.timeout
    connect = LONGEST_CONNECT if timeout is None else min(timeout, LONGEST_CONNECT)
    return http.build_request(
        request.method,
        request.path,
        headers=dict(request.headers),
        content=request.content,
        timeout=httpx.Timeout(timeout, connect=connect),
    )


def _answer(response: httpx.Response, content: bytes = b"") -> Answer:
    return Answer(response.status_code, {name.lower(): value for name, value in response.headers.items()}, content)


def _raise_translated(exc: Exception, base_url: Any) -> NoReturn:
    if isinstance(exc, httpx.TimeoutException | TimeoutError) and not isinstance(exc, httpx.ConnectTimeout):
        raise APITimeoutError(f"{base_url} did not answer in time") from exc
    raise not_reachable(str(base_url).rstrip("/"), str(exc) or type(exc).__name__) from exc
