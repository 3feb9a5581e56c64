"""`splitfuse top`: shows a running server in the terminal, with its page's figures, from the same stream."""

import json
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx

from ...client.base import key_headers, with_scheme
from ...client.sse import SSEParser
from ...engine.errors import ConfigError
from .live_figures import LiveFigures, printable

_REDRAW_S = 0.5
_TIMEOUT_S = 60.0  # limit of silence; a comment comes every 15 s
_ONCE_S = 2.0  # limit of silence for a single screen
_ENTER, _LEAVE, _HOME, _REST = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H", "\x1b[J"


def run(url: str, *, api_key: str | None, once: bool) -> int:
    """Run the command; Ctrl-C ends it. With `once`, or without a terminal, it prints one screen. Raises ConfigError."""
    is_live = sys.stdout.isatty() and not once
    print(end=_ENTER if is_live else "")
    try:
        for figures in _figures(url, api_key, patience_s=_TIMEOUT_S if is_live else _ONCE_S):
            if is_live:
                _draw(figures)
            else:
                print("\n".join(figures.screen(width=120, height=60)))
                return 0
    finally:
        print(end=_LEAVE if is_live else "", flush=True)
    raise ConfigError(f"{url} has ended the stream")


def _figures(url: str, api_key: str | None, *, patience_s: float) -> Iterator[LiveFigures]:
    """Yield the figures every half a second while events arrive, and once after `patience_s` of silence."""
    figures = LiveFigures()
    drawn_at = time.monotonic()
    try:
        for event, data in _events(url, api_key, patience_s=patience_s):
            if event == "hello":
                figures = LiveFigures(data)
            figures.take(event, data)
            if (now := time.monotonic()) - drawn_at >= _REDRAW_S or (event == "blocks" and patience_s == _TIMEOUT_S):
                drawn_at = now
                yield figures
    except httpx.ReadTimeout:
        yield figures
    except httpx.HTTPError as exc:
        raise ConfigError(f"{url}: {exc}; give the server's address with --url") from exc


def _draw(figures: LiveFigures) -> None:
    size = shutil.get_terminal_size()
    lines = figures.screen(width=size.columns, height=size.lines - 1)
    print(_HOME + "\x1b[K\n".join(lines) + _REST, end="", flush=True)


def _events(url: str, api_key: str | None, *, patience_s: float) -> Iterator[tuple[str, Any]]:
    timeout = httpx.Timeout(_TIMEOUT_S, read=patience_s)
    parser = SSEParser()
    address = f"{with_scheme(url)}/stats/stream"
    with httpx.stream("GET", address, headers=key_headers(api_key), timeout=timeout) as response:
        if response.status_code != 200:
            response.read()
            raise ConfigError(f"{url} answered {response.status_code}: {_message(response)}")
        for chunk in response.iter_bytes():
            for event in parser.feed(chunk):
                yield event.event, json.loads(event.data)


def _message(response: httpx.Response) -> str:
    try:
        return printable(str(response.json()["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        return "no splitfuse answers there"
