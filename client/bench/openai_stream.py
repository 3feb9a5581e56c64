"""Streamed request to an OpenAI-compatible server, and a stopwatch for its chunks."""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from ..sse import SSEParser
from .latency import Outcome
from .workload import LoadRequest


@dataclass
class Stopwatch:
    """Stopwatch that turns the chunks of one stream, in order and with their times, into an Outcome.

    A chunk counts as output unless its only content is the role or the end.
    """

    began: float
    output_len: int | None = None
    prompt_len: int | None = None
    error: str | None = None
    num_joined: int = 0  # events that one read of the socket brought together with an earlier one
    _first: float = math.nan
    _last: float = math.nan
    _itls: list[float] = field(default_factory=list)
    _num_chunks: int = 0

    def note(self, chunk: Mapping[str, Any], now: float) -> None:
        """Count one `data:` object that came at `now`."""
        if chunk.get("error"):
            self.error = str(chunk["error"].get("message") if isinstance(chunk["error"], dict) else chunk["error"])
        if chunk.get("usage"):
            self.output_len = chunk["usage"].get("completion_tokens")
            self.prompt_len = chunk["usage"].get("prompt_tokens")
        choices = chunk.get("choices")
        if not choices:
            return
        if _is_output(choices[0]):
            if self._num_chunks:
                self._itls.append(now - self._last)
            else:
                self._first = now
            self._num_chunks += 1
            self._last = now
        elif choices[0].get("finish_reason") and not self._num_chunks:
            self._first = self._last = now  # an output whose tokens make no text

    def outcome(self, prompt_len: int) -> Outcome:
        """Return the request's record; `prompt_len` is used if the server did not count the prompt."""
        error = self.error
        if error is None and math.isnan(self._first):
            error = "the stream ended without any output"
        if error is not None:
            return Outcome(prompt_len=prompt_len, error=error)
        return Outcome(
            prompt_len=prompt_len if self.prompt_len is None else self.prompt_len,
            output_len=self._num_chunks if self.output_len is None else self.output_len,
            ttft=self._first - self.began,
            itls=self._itls,
            e2el=self._last - self.began,
            num_joined=self.num_joined,
        )


@dataclass(frozen=True)
class Target:
    """Endpoint under load, and the sampling of its requests."""

    endpoint: str
    model: str
    temperature: float = 0.0
    ignore_eos: bool = False

    def body(self, request: LoadRequest) -> dict[str, Any]:
        """Return the JSON body of a request."""
        body: dict[str, Any] = {
            "model": self.model,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.endpoint.endswith("/chat/completions"):
            body |= {"messages": [{"role": "user", "content": request.prompt}]}
            body |= {"max_completion_tokens": request.output_len}
        else:
            prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
            body |= {"prompt": prompt, "max_tokens": request.output_len}
        return body | ({"ignore_eos": True} if self.ignore_eos else {})


async def measure(
    http: httpx.AsyncClient, target: Target, request: LoadRequest, clock: Callable[[], float] = time.perf_counter
) -> Outcome:
    """Send a request and read its stream to the end. Errors of the server or the network become `error`."""
    content = json.dumps(target.body(request)).encode()
    headers = {"content-type": "application/json"}
    watch = Stopwatch(clock())
    try:
        async with http.stream("POST", target.endpoint, content=content, headers=headers) as response:
            if response.status_code == 200:
                await _read(response, watch, clock)
            else:
                watch.error = f"{response.status_code}: {_message(await response.aread())}"
    except (httpx.HTTPError, ValueError) as exc:
        watch.error = f"{type(exc).__name__}: {exc}"
    return watch.outcome(request.prompt_len)


async def _read(response: httpx.Response, watch: Stopwatch, clock: Callable[[], float]) -> None:
    parser = SSEParser()
    async for data in response.aiter_bytes():
        for number, event in enumerate(parser.feed(data)):
            if event.data == "[DONE]":
                return
            watch.num_joined += number > 0
            watch.note(json.loads(event.data), clock())


def _is_output(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta")
    if delta is None:
        return bool(choice.get("text")) or not choice.get("finish_reason")
    has_text = any(delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls"))
    return has_text or not (choice.get("finish_reason") or "role" in delta)


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return content[:200].decode("utf-8", "replace")
