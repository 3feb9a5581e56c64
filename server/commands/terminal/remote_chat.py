"""RemoteChat: the model of a running server. Imports no engine."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from ....client import APIConnectionError, APIError, Client
from ....client import Usage as Used
from ....engine.errors import ConfigError
from ...process.runtime_file import running_servers
from .chat_model import Messages, Show, Usage


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
        self.url = url.rstrip("/").removesuffix("/v1")
        with self._translated():
            self._client = Client(self.url, api_key, timeout=None, max_retries=0)
            self.name = self._client.models()[0]

    def __enter__(self) -> "RemoteChat":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._client.close()

    def answer(self, messages: Messages, fields: Mapping[str, Any], show: Show) -> Usage | None:
        """Like ChatModel.answer."""
        usage = None
        with self._translated():
            for delta in self._client.chat_stream(messages, model=self.name, **_without_nones(fields)):
                show(delta.reasoning or delta.text)
                usage = usage if delta.answer is None else _usage(delta.answer.usage)
        return usage

    def complete(self, prompt: str, fields: Mapping[str, Any], show: Show) -> Usage | None:
        """Like `answer`, but continue a text."""
        with self._translated(), self._client.stream(prompt, model=self.name, **_without_nones(fields)) as stream:
            for event in stream:
                show(event.text)
        return None if stream.result is None else _usage(stream.result.usage)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (APIConnectionError, httpx.InvalidURL) as exc:
            raise ConfigError(f"no server answers at {self.url}: {exc}; splitfuse ps lists yours") from exc
        except APIError as exc:
            answer = f"{self.url} answered {exc.status}" if exc.status else self.url
            raise ConfigError(f"{answer}: {_printable(str(exc))}") from exc
        except (KeyError, IndexError, TypeError) as exc:
            raise ConfigError(f"{self.url} names no model under /v1/models") from exc


def _without_nones(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _usage(used: Used) -> Usage:
    return Usage(used.prompt_tokens, used.cached_tokens, used.completion_tokens)


def _printable(text: str) -> str:
    """Replace characters that could move a terminal's cursor, change its colours or its reading direction."""
    return "".join(character if character.isprintable() else "�" for character in text)
