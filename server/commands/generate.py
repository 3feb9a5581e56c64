"""`splitfuse generate`: continues a prompt in this process, in the terminal."""

import contextlib
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...engine.errors import ConfigError
from ..process.exit import INTERRUPTED
from ..server_settings import ServerSettings
from .terminal.answer_view import PlainView
from .terminal.session import Session


def read_prompt(text: str | None, *, model: str | None) -> str:
    """Return the text, or all of standard input for "-" and without a text. Raises ConfigError."""
    if model is not None and len(model.split()) > 1 and not Path(model).expanduser().exists():
        raise ConfigError(
            f"{model!r} stands where MODEL does; to continue it: splitfuse generate -p {shlex.quote(model)}"
        )
    if text not in (None, "-"):
        return str(text)
    piped_text = ""
    if text == "-" or not _is_terminal():
        with contextlib.suppress(OSError):  # standard input may be closed
            piped_text = sys.stdin.read().removesuffix("\n")  # the line break that `echo` adds
    if not piped_text:
        raise ConfigError("generate needs a text to continue: -p/--prompt TEXT, or standard input")
    return piped_text


def _is_terminal() -> bool:
    return sys.stdin is None or sys.stdin.isatty()


def generate(settings: ServerSettings, *, prompt: str, fields: Mapping[str, Any]) -> int:
    """Print the continuation of the prompt. Ctrl-C stops it. `fields`: sampling fields that the user chose."""
    with Session(settings) as session:
        return _print_answer(lambda show: session.answer(prompt, session.params(fields), show))


def generate_at(url: str, *, api_key: str | None, prompt: str, fields: Mapping[str, Any]) -> int:
    """Like generate, but at a running server."""
    from .terminal.remote_chat import RemoteChat

    with RemoteChat(url, api_key=api_key) as model:
        return _print_answer(lambda show: model.complete(prompt, fields, show))


def _print_answer(answer: Callable[[Callable[[str], None]], object]) -> int:
    """Print the parts that `answer` shows; the exit code."""
    try:
        with PlainView() as view:
            answer(view.show)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0
