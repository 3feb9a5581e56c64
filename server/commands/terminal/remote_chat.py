"""RemoteChat: the model of a running server, over OpenAI's API. Imports no engine."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from ....client.base import key_headers, with_scheme
from ....client.sse import SSEParser
from ....engine.errors import ConfigError
from ...process.runtime_file import running_servers
from .chat_model import Messages, Show, Usage

_TIMEOUT = httpx.Timeout(600.0, connect=5.0)


def server_of(model: str, *, port: int, api_key: str | None) -> str | None:
    """Return the URL of a server of this user with this model that the key opens, that on `port` first, or None."""
    found = [server for server in running_servers() if server.model == model]
    for server in sorted(found, key=lambda server: server.port != port):
        with contextlib.suppress(ConfigError), RemoteChat(server.url, api_key=api_key):
            return server.url
    return None


class RemoteChat:
    """ChatModel of a server at a URL."""

    def __init__(self, url: str, *, api_key: str | None) -> None:
        """Raise ConfigError if no server answers there."""
        self.url = with_scheme(url).removesuffix("/v1")
        self._client = httpx.Client(base_url=self.url, headers=key_headers(api_key), timeout=_TIMEOUT, trust_env=False)
        self.name = self._first_model()

    def __enter__(self) -> "RemoteChat":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._client.close()

    def answer(self, messages: Messages, fields: Mapping[str, Any], show: Show) -> Usage | None:
        """Like ChatModel.answer."""
        usage = None
        for chunk in self._chunks("/v1/chat/completions", {"messages": [*messages]}, fields):
            for choice in chunk.get("choices", ()):
                delta = choice.get("delta", {})
                show(delta.get("reasoning_content") or delta.get("reasoning") or delta.get("content") or "")
            usage = _usage(chunk) or usage
        return usage

    def complete(self, prompt: str, fields: Mapping[str, Any], show: Show) -> Usage | None:
        """Like `answer`, but continue a text."""
        usage = None
        for chunk in self._chunks("/v1/completions", {"prompt": prompt}, fields):
            for choice in chunk.get("choices", ()):
                show(choice.get("text") or "")
            usage = _usage(chunk) or usage
        return usage

    def _first_model(self) -> str:
        try:
            answer = self._client.get("/v1/models")
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise ConfigError(f"no server answers at {self.url}: {exc}; splitfuse ps lists yours") from exc
        self._check(answer)
        try:
            return str(answer.json()["data"][0]["id"])
        except (ValueError, LookupError, TypeError) as exc:
            raise ConfigError(f"{self.url} names no model under /v1/models") from exc

    def _chunks(self, path: str, body: Mapping[str, Any], fields: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the chunks of a streamed answer. Closing the iterator cancels the request."""
        given = {name: value for name, value in fields.items() if value is not None}
        request = {"model": self.name, **given, **body, "stream": True, "stream_options": {"include_usage": True}}
        parser = SSEParser()
        try:
            with self._client.stream("POST", path, json=request) as response:
                if response.status_code != 200:
                    response.read()
                    self._check(response)
                for data in response.iter_bytes():
                    for event in parser.feed(data):
                        if event.data != "[DONE]":
                            yield self._chunk(event.data)
        except httpx.HTTPError as exc:
            raise ConfigError(f"{self.url}: {exc or type(exc).__name__}") from exc

    def _chunk(self, text: str) -> Mapping[str, Any]:
        chunk: Mapping[str, Any] = json.loads(text)
        if "error" in chunk:
            raise ConfigError(f"{self.url}: {_printable(str(chunk['error'].get('message')))}")
        return chunk

    def _check(self, response: httpx.Response) -> None:
        if response.status_code == 200:
            return
        try:
            text = _printable(str(response.json()["error"]["message"]))
        except (ValueError, KeyError, TypeError):
            text = "no splitfuse answers there"
        raise ConfigError(f"{self.url} answered {response.status_code}: {text}")


def _usage(chunk: Mapping[str, Any]) -> Usage | None:
    usage = chunk.get("usage")
    if not usage:
        return None
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Usage(usage["prompt_tokens"], cached, usage["completion_tokens"])


def _printable(text: str) -> str:
    """Replace characters that could move a terminal's cursor, change its colours or its reading direction."""
    return "".join(character if character.isprintable() else "�" for character in text)
