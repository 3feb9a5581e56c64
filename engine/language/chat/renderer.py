"""Renderer: a chat template in processes of its own, with limits in time and memory.

A template is a program by the author of the model: nested `{% for i in range(99999) %}` takes minutes,
`{{ 7 ** (9 ** 9) }}` holds Python's lock meanwhile, `{{ "x" * 10 ** 10 }}` takes all memory. A process
(render_worker.py) renders many conversations, one after the other, without a fork for each: three messages take 0.2 ms,
0.03 ms of them in the template.
"""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ...errors import ConfigError, InvalidRequestError, UnavailableError
from ..workers.input_threads import LONG_CHARS
from ..workers.worker_process import Reply, WorkerEndedError, WorkerProcess
from .render_worker import COMPILE_LIMIT_S, TIME_LIMIT_S
from .template import ChatTemplate

_SLACK_S = 20.0  # for a machine with other work; the process's own limit counts its CPU time


def check_compiles(recipe: Mapping[str, Any]) -> None:
    """Raise ConfigError if a long template compiles too slowly, or with too much memory, or dies of it.

    A process of its own compiles it first, within limits: 700 KB with 100,000 expressions take 15 to 20 s. Every other
    error is left to this process.
    """
    most_s = COMPILE_LIMIT_S + _SLACK_S
    command, setup = [sys.executable, "-P", "-c", _program()], f"{json.dumps(recipe)}\n".encode()
    with suppress(subprocess.TimeoutExpired):
        tried = subprocess.run(command, input=setup, capture_output=True, timeout=most_s, check=False)
        if tried.returncode >= 0 and b"MemoryError" not in tried.stderr:
            return
    num_chars = sum(len(recipe[name] or "") for name in ("source", "tool_source"))
    raise ConfigError(
        f"the chat template of {num_chars} characters does not compile within {COMPILE_LIMIT_S:g} s and the memory for "
        "it; give a shorter one with --chat-template"
    )


def _program() -> str:
    """Return the program of a process, which finds our modules on this process's path."""
    return f"import sys; sys.path[:] = {sys.path!r}; from {__package__} import render_worker as it; it.main()"


class Renderer:
    """Chat template in two processes, which start with the first conversation and end with this object."""

    def __init__(self, template: ChatTemplate) -> None:
        setup = json.dumps(template.recipe)
        # Long conversations have a process of their own, and also a thread of their own (input_threads.py).
        self._short, self._long = _Process(setup), _Process(setup)

    def start(self) -> None:
        """Start the process of most conversations before the first one. Raises UnavailableError."""
        self._short.start()

    def render(self, conversation: str) -> str:
        """Render the prompt's text of a conversation: the JSON of ChatTemplate.render's arguments. Blocks.

        Raises UnavailableError, and InvalidRequestError like ChatTemplate.render, but also if rendering takes too much
        time or memory.
        """
        process = self._long if len(conversation) > LONG_CHARS else self._short
        reply = process.ask(conversation)
        if "error" in reply:
            raise InvalidRequestError(reply["error"], param=reply["param"])
        return str(reply["text"])


class _Process:
    """Process that renders one conversation at a time, so the conversation that killed it is known."""

    def __init__(self, setup: str) -> None:
        self._process = WorkerProcess(["-c", _program()], setup=setup)
        self._lock = threading.Lock()

    def start(self) -> None:
        self._process.start()

    def ask(self, conversation: str) -> Reply:
        with self._lock:
            for is_last in (False, True):  # something else than the conversation may have killed the process
                try:
                    return self._process.ask(conversation)
                except WorkerEndedError as exc:
                    if exc.exit_code == -signal.SIGPROF:
                        raise _refusal(f"it takes more than {TIME_LIMIT_S:g} s") from exc
                    if is_last and exc.was_silent:  # the job has a limit of processor time, and got hardly any
                        message = "the machine is too busy to render the messages; try again later"
                        raise UnavailableError(message) from exc
        raise _refusal("it nests too deeply or takes too much memory")


def _refusal(reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"the chat template cannot render these messages: {reason}; send less, or start with another --chat-template",
        param="messages",
    )
