"""Renderer: a chat template in processes of its own, with limits in time and memory.

A template is a program of whoever made the model: `{% for i in range(99999) %}` within itself takes minutes,
`{{ 7 ** (9 ** 9) }}` holds Python's lock meanwhile, `{{ "x" * 10 ** 10 }}` takes all memory. The process's program is
render_worker.py. It renders one conversation after the other, so that costs no fork: three messages take 0.2 ms, 0.03
of them the template's own.
"""

import json
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import InvalidRequestError
from ...serving.workers.input_threads import LONG_CHARS
from ...serving.workers.worker_process import Reply, WorkerEndedError, WorkerProcess
from .render_worker import TIME_LIMIT_S
from .template import ChatTemplate


class Renderer:
    """Renders as its template does. The processes start with the first conversation and end with this object."""

    def __init__(self, template: ChatTemplate) -> None:
        setup = json.dumps(template.recipe)
        # Long conversations have a process of their own, as they have a thread.
        self._short, self._long = _Process(setup), _Process(setup)

    def render(self, conversation: str) -> str:
        """The prompt's text of a conversation that `as_json` made. Blocks.

        Raises InvalidRequestError as ChatTemplate.render does, also where that takes too much time or memory;
        UnavailableError.
        """
        process = self._long if len(conversation) > LONG_CHARS else self._short
        reply = process.ask(conversation)
        if "error" in reply:
            raise InvalidRequestError(reply["error"], param=reply["param"])
        return str(reply["text"])


def as_json(messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """What ChatTemplate.render takes, as JSON."""
    return json.dumps({"messages": messages, **options})


class _Process:
    """Renders one conversation at a time, so it is clear of which one it died."""

    def __init__(self, setup: str) -> None:
        # Our modules are found where this process finds them.
        program = f"import sys; sys.path[:] = {sys.path!r}; from {__package__} import render_worker as it; it.main()"
        self._process = WorkerProcess(["-c", program], setup=setup)
        self._lock = threading.Lock()

    def ask(self, conversation: str) -> Reply:
        with self._lock:
            try:
                return self._process.ask(conversation)
            except WorkerEndedError as exc:
                if exc.exit_code == -signal.SIGPROF:
                    raise _refusal(f"it takes more than {TIME_LIMIT_S:g} s") from exc
            try:
                return self._process.ask(conversation)  # it may have been killed
            except WorkerEndedError as exc:
                raise _refusal("it nests too deeply or takes too much memory") from exc


def _refusal(reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"the chat template cannot render these messages: {reason}; send less, or start with another --chat-template",
        param="messages",
    )
