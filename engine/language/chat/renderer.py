"""Renderer: a chat template in processes of its own, with limits in time and memory.

A template is a program by the author of the model: nested `{% for i in range(99999) %}` takes minutes,
`{{ 7 ** (9 ** 9) }}` holds Python's lock meanwhile, `{{ "x" * 10 ** 10 }}` takes all memory. A process
(render_worker.py) renders many conversations, one after the other, without a fork for each: three messages take 0.2 ms,
0.03 ms of them in the template.
"""

import json
import signal
import sys
import threading

from ...errors import InvalidRequestError, UnavailableError
from ..workers.input_threads import LONG_CHARS
from ..workers.worker_process import Reply, WorkerEndedError, WorkerProcess
from .render_worker import TIME_LIMIT_S
from .template import ChatTemplate


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
        # The child finds our modules on this process's path.
        program = f"import sys; sys.path[:] = {sys.path!r}; from {__package__} import render_worker as it; it.main()"
        self._process = WorkerProcess(["-c", program], setup=setup)
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
