"""`splitfuse chat`: a conversation in the terminal. A line that begins with / is a command."""

import contextlib
import importlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...engine.core.sampling_params import SamplingParams
from ...engine.errors import ConfigError, SplitfuseError
from ...engine.language.chat.messages import read_messages
from ...engine.private_file import create_private
from ..server_settings import ServerSettings
from .terminal.answer_view import AnswerView, new_view
from .terminal.chat_model import ChatModel, LocalChat, Usage
from .terminal.remote_chat import RemoteChat
from .terminal.session import Session

_HELP = '''/set NAME VALUE  a sampling field, as /set temperature 0.2; without VALUE the model's own again
/show         the settings and the conversation
/retry        answer the last message again
/undo         take the last message and its answer back
/system TEXT  begin again with this system message; without TEXT without one
/reset        begin again; the system message stays
/save FILE    write the conversation there as JSON
/load FILE    go on with a conversation that was saved
/bye          end, as /exit and Ctrl-D do
"""           begins and ends a message of several lines'''
_QUOTES = '"""'
_SAVED = (b'[\n {\n  "role": "', b"[]\n")  # heads of saved conversations, which may be replaced


class ChatOptions(NamedTuple):
    """Options of the command. `fields`: sampling fields that the user chose."""

    fields: Mapping[str, Any]
    system: str | None = None
    is_verbose: bool = False
    is_plain: bool = False


def chat(settings: ServerSettings, options: ChatOptions) -> int:
    """Run a conversation in this process. Ctrl-C stops an answer, Ctrl-D ends the conversation."""
    with Session(settings) as session:
        return _converse(LocalChat(session, name=settings.model_name), options)


def chat_at(url: str, options: ChatOptions, *, api_key: str | None) -> int:
    """Like chat, but with the model of a running server."""
    with RemoteChat(url, api_key=api_key) as model:
        return _converse(model, options)


def _converse(model: ChatModel, options: ChatOptions) -> int:
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # from now on input() edits lines
    hint = ", /help lists commands" if sys.stdin.isatty() else ""
    _say(f"{model.name}: Ctrl-C stops an answer, Ctrl-D ends{hint}")
    conversation = Conversation(model, options)
    while (text := _read_message()) is not None and conversation.take(text):
        pass
    return 0


class Conversation:
    """Messages so far, and the effect of a typed message on them."""

    def __init__(self, model: ChatModel, options: ChatOptions) -> None:
        self._model = model
        self._options = options
        self._fields = dict(options.fields)
        self._messages: list[dict[str, str]] = []
        if options.system:
            self._system(options.system)

    def take(self, text: str) -> bool:
        """Answer the message or run its command. Returns False to end the conversation."""
        name, _, argument = text.strip().partition(" ")
        if name in ("/bye", "/exit", "/quit"):
            return False
        try:
            if name.startswith("/") and name[1:].isalpha():
                self._command(name, argument.strip())
            elif name:
                self._answer([*self._messages, {"role": "user", "content": text}])
        except SplitfuseError as exc:
            _say(f"splitfuse: error: {exc}")
        return True

    def _command(self, name: str, argument: str) -> None:
        commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: _say(_HELP),
            "/reset": lambda _: self._system(self._system_text()),
            "/system": self._system,
            "/set": self._set,
            "/show": lambda _: self._show(),
            "/retry": lambda _: self._answer(self._unanswered_messages()),
            "/undo": lambda _: self._undo(),
            "/save": lambda text: self._save(_path(name, text)),
            "/load": lambda text: self._load(_path(name, text)),
        }
        if name in commands:
            commands[name](argument)
        else:
            _say(f"{name} is not a command; /help lists them")

    def _answer(self, messages: list[dict[str, str]]) -> None:
        """Show the answer, and append it to the messages. Ctrl-C keeps the text so far."""
        answer = _Answer(new_view(is_plain=self._options.is_plain))
        usage: Usage | None = None
        try:
            with answer.view:
                usage = self._model.answer(messages, self._fields, answer.show)
        except KeyboardInterrupt:
            pass
        self._messages = [*messages, {"role": "assistant", "content": answer.text}]
        if self._options.is_verbose and usage is not None:
            _say(answer.speed(usage))

    def _unanswered_messages(self) -> list[dict[str, str]]:
        """Return the messages up to the last one of the user. Raises ConfigError without one."""
        users = [index for index, message in enumerate(self._messages) if message["role"] == "user"]
        if not users:
            raise ConfigError("there is no message yet")
        return self._messages[: users[-1] + 1]

    def _undo(self) -> None:
        self._messages = self._unanswered_messages()[:-1]

    def _system_text(self) -> str:
        return next((message["content"] for message in self._messages[:1] if message["role"] == "system"), "")

    def _system(self, text: str) -> None:
        self._messages = [{"role": "system", "content": text}] if text else []

    def _set(self, argument: str) -> None:
        name, _, text = argument.partition(" ")
        if not name:
            raise ConfigError("/set needs a name: /set temperature 0.2")
        value = _value(text.strip())
        fields = {**self._fields, name: value}
        SamplingParams.from_fields(fields)  # a wrong name or value is refused
        self._fields = {key: value for key, value in fields.items() if value is not None}

    def _show(self) -> None:
        chosen = {name: value for name, value in self._fields.items() if value is not None}
        fields = ", ".join(f"{name} {value}" for name, value in chosen.items()) or "the model's own"
        _say(f"{self._model.name}; settings: {fields}")
        for message in self._messages:
            _say(f"{message['role']}: {message['content']}")

    def _save(self, path: Path) -> None:
        try:
            with open(create_private(path, setting="/save", head=_SAVED), "w", encoding="utf-8") as file:
                file.write(json.dumps(self._messages, ensure_ascii=False, indent=1) + "\n")
        except OSError as exc:
            raise ConfigError(f"{path} cannot be written: {exc.strerror}") from exc

    def _load(self, path: Path) -> None:
        try:
            messages = read_messages(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as exc:
            raise ConfigError(f"{path} cannot be read as a saved conversation: {exc}") from exc
        self._messages = [
            {"role": str(message["role"]), "content": str(message.get("content") or "")} for message in messages
        ]


class _Answer:
    """Answer that arrives: its text and the times of its parts."""

    def __init__(self, view: AnswerView) -> None:
        self.view = view
        self.text = ""
        self._start = self._first = self._last = time.monotonic()

    def show(self, text: str) -> None:
        """Show a part, and keep it."""
        self._last = time.monotonic()
        if not self.text:
            self._first = self._last
        self.text += text
        self.view.show(text)

    def speed(self, usage: Usage) -> str:
        """Describe the speed in one line."""
        rate = (usage.num_output_tokens - 1) / max(1e-6, self._last - self._first)
        return (
            f"{usage.num_output_tokens} tokens, {rate:.1f} tokens/s, {self._first - self._start:.2f} s to the first; "
            f"{usage.num_cached_tokens} of {usage.num_prompt_tokens} prompt tokens from the cache"
        )


def _value(text: str) -> Any:
    """Read a value as JSON, or as the text that it is; None if it is empty."""
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def _path(name: str, argument: str) -> Path:
    if not argument:
        raise ConfigError(f"{name} needs a file: {name} FILE")
    return Path(argument).expanduser()


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _read_message() -> str | None:
    """Return the typed message, an empty string after Ctrl-C, None after Ctrl-D. Quotes hold several lines."""
    line = _read_line("> ")
    if line is None or not line.strip().startswith(_QUOTES):
        return line
    lines = [line.strip().removeprefix(_QUOTES)]
    while not lines[-1].rstrip().endswith(_QUOTES):
        following = _read_line(". ")
        if not following and following is None:
            return None
        lines.append(following)
    return "\n".join(lines).rstrip().removesuffix(_QUOTES).strip("\n")


def _read_line(prompt: str) -> str | None:
    """Return the typed line, an empty string after Ctrl-C, None after Ctrl-D."""
    try:
        return input(prompt if sys.stdin.isatty() else "")
    except KeyboardInterrupt:
        print()
        return ""
    except EOFError:
        return None
