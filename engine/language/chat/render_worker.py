"""Program of the process that renders conversations, one after the other, each within limits.

renderer.py runs it. A conversation that takes too much time ends the process; one that takes too much memory is
refused.
"""

import json
import signal
import sys
from typing import Any

from ...errors import InvalidRequestError
from .template import ChatTemplate

# CPU seconds. 20,000 messages, 860 KB of JSON, take 0.16 s in the demo model's template.
TIME_LIMIT_S = 1.0
MEMORY_LIMIT = 256 * 2**20
COMPILE_LIMIT_S = 5.0  # CPU seconds
# Limit of the rendered text: _MAX_CHARS, plus _MAX_GROWTH for each character of the conversation.
_MAX_CHARS = 2**20
_MAX_GROWTH = 4


def main() -> None:
    """Render each conversation on stdin until stdin ends. The first line is the template."""
    _limit_memory()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, COMPILE_LIMIT_S)
    template = ChatTemplate(**json.loads(sys.stdin.readline()))
    signal.setitimer(signal.ITIMER_PROF, 0)
    for line in sys.stdin:
        message = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, TIME_LIMIT_S)
        reply = _rendered(template, message["job"], max_chars=_MAX_CHARS + _MAX_GROWTH * len(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps({"id": message["id"], **reply}), flush=True)


def _rendered(template: ChatTemplate, conversation: dict[str, Any], *, max_chars: int) -> dict[str, Any]:
    if conversation.get("asks_form"):
        from .chat_form import form_facts  # here: it takes part in no rendering

        return {"text": json.dumps(form_facts(template))}
    try:
        text = template.render(conversation.pop("messages"), **conversation)
    except InvalidRequestError as exc:
        return {"error": str(exc), "param": exc.param}
    if len(text) > max_chars:
        message = f"the chat template makes {len(text)} characters of these messages; at most {max_chars} are taken"
        return {"error": message, "param": "messages"}
    return {"text": text}


def _limit_memory() -> None:
    import resource

    if sys.platform == "linux":  # other systems ignore the limit, or count memory that is only reserved
        with open("/proc/self/statm") as file:
            limit = int(file.read().split()[0]) * resource.getpagesize() + MEMORY_LIMIT
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
