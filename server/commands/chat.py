"""`splitfuse chat`: a conversation in the terminal. A line that begins with / is a command."""

import contextlib
import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engine.core.sampling_params import SamplingParams
from ...engine.errors import ConfigError, SplitfuseError
from ...engine.extras.chat.messages import read_messages
from ..server_settings import ServerSettings
from .session import Session

if TYPE_CHECKING:
    from ...engine.text.tokenizer import Tokenizer

_HELP = """/system TEXT  begin again with this system message; without TEXT without one
/reset        begin again; the system message stays
/save FILE    write the conversation there as JSON
/load FILE    go on with a conversation that was saved
/bye          end, as /exit and Ctrl-D do"""


def chat(settings: ServerSettings, *, fields: Mapping[str, Any]) -> int:
    """Run a conversation. Ctrl-C stops an answer, Ctrl-D ends the conversation.

    `fields`: sampling fields that the user chose.
    """
    with Session(settings) as session:
        tokenizer = session.engine.tokenizer
        if tokenizer is None or not tokenizer.has_chat_template:
            raise ConfigError(f"{settings.model_name} has no chat template; use `splitfuse generate`")
        with contextlib.suppress(ImportError):
            importlib.import_module("readline")  # from now on input() edits lines
        hint = ", /help lists commands" if sys.stdin.isatty() else ""
        _say(f"{settings.model_name}: Ctrl-C stops an answer, Ctrl-D ends{hint}")
        conversation = Conversation(session, tokenizer, session.params(fields, default_max_tokens=None))
        while (text := _read_line()) is not None and conversation.take(text):
            pass
    return 0


class Conversation:
    """Messages so far, and the effect of a typed line on them."""

    def __init__(self, session: Session, tokenizer: "Tokenizer", params: SamplingParams) -> None:
        self._session = session
        self._tokenizer = tokenizer
        self._params = params
        self._messages: list[dict[str, str]] = []

    def take(self, line: str) -> bool:
        """Answer the line or run its command. Returns False to end the conversation."""
        name, _, argument = line.strip().partition(" ")
        if name in ("/bye", "/exit", "/quit"):
            return False
        try:
            if name.startswith("/") and name[1:].isalpha():
                self._command(name, argument.strip())
            elif name:
                self._answer(line)
        except SplitfuseError as exc:
            _say(f"splitfuse: error: {exc}")
        return True

    def _command(self, name: str, argument: str) -> None:
        match name:
            case "/help":
                _say(_HELP)
            case "/reset":
                self._messages = [message for message in self._messages if message["role"] == "system"][:1]
            case "/system":
                self._messages = [{"role": "system", "content": argument}] if argument else []
            case "/save":
                self._save(_path(name, argument))
            case "/load":
                self._messages = _load(_path(name, argument))
            case _:
                _say(f"{name} is not a command; /help lists them")

    def _answer(self, text: str) -> None:
        messages = [*self._messages, {"role": "user", "content": text}]
        prompt = self._tokenizer.encode(self._tokenizer.render_chat(messages), add_special_tokens=False)
        try:
            self._session.answer(prompt, self._params)
        except KeyboardInterrupt:
            print()
        self._messages = [*messages, {"role": "assistant", "content": self._session.answered}]

    def _save(self, path: Path) -> None:
        try:
            path.write_text(json.dumps(self._messages, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        except OSError as exc:
            raise ConfigError(f"{path} cannot be written: {exc.strerror}") from exc


def _load(path: Path) -> list[dict[str, str]]:
    try:
        messages = read_messages(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path} cannot be read as a saved conversation: {exc}") from exc
    return [{"role": str(message["role"]), "content": str(message.get("content") or "")} for message in messages]


def _path(name: str, argument: str) -> Path:
    if not argument:
        raise ConfigError(f"{name} needs a file: {name} FILE")
    return Path(argument).expanduser()


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _read_line() -> str | None:
    """Return the typed line, an empty string after Ctrl-C, None after Ctrl-D."""
    try:
        return input("> " if sys.stdin.isatty() else "")
    except KeyboardInterrupt:
        print()
        return ""
    except EOFError:
        return None
