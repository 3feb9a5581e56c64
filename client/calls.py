"""Every call as a generator of actions: what to send, when to try again, what the caller gets. No I/O in here.

A wire (wire.py) performs the actions, plainly or with await, and throws what failed back in at the same place,
so that one text serves both clients and cleaning up is an ordinary `except`.
"""

import contextlib
import math
from collections.abc import Sequence
from typing import Any

from . import messages
from .actions import Open, Read, Send, Sleep, Steps, Submitted
from .errors import APIConnectionError, APIError, APITimeoutError, from_envelope
from .events import EventReader
from .messages import Answer, Prompt, Request
from .results import Result, read_result
from .retry import Deadline, Patience

LONGEST_POLL = 30.0  # seconds; the server answers after 60 at the latest, proxies often cut at 60
LONGEST_ANSWER = 90.0  # seconds; the longest poll and then some: after that the connection is dead
LONGEST_SILENCE = 40.0  # seconds; the server pings every 15, so two pings were missed: the connection is dead
FAREWELL = 2.0  # seconds for a DELETE whose answer nobody waits for


def ask(request: Request, deadline: Deadline) -> Steps[Answer]:
    """Send until there is a good answer, patience ends, or an error says that trying again is no use."""
    num_failures = 0
    while True:
        try:
            answer: Answer = yield Send(request, deadline.left(at_most=LONGEST_ANSWER))
            answer.raise_for_status()
            return answer
        except APIError as error:
            if isinstance(error, APIConnectionError) and not request.is_repeatable:
                raise
            num_failures += 1
            yield Sleep(deadline.pause_after(error, num_failures=num_failures))


def submit(prompt: Prompt, sampling: dict[str, Any], deadline: Deadline) -> Steps[str]:
    """POST the request; returns its seq_id."""
    answer = yield from ask(messages.submit(prompt, sampling), deadline)
    body = answer.json()
    seq_id = body.get("seq_id") if isinstance(body, dict) else None
    if not isinstance(seq_id, str):
        raise APIError("the server's answer to POST /generate has no seq_id; is this a splitfuse server?")
    return seq_id


def submit_alone(prompt: Prompt, sampling: dict[str, Any], patience: Patience) -> Steps[str]:
    """`submit` as a call of its own."""
    return (yield from submit(prompt, sampling, patience.begin()))


def wait(seq_id: str, seconds: float | None, patience: Patience) -> Steps[Result]:
    """The result once it is finished, or as it stands after `seconds`; without a number it must finish in time."""
    if seconds is None:
        return (yield from _finish(seq_id, patience.begin()))
    if patience.timeout is not None:
        seconds = min(seconds, 0.9 * patience.timeout)  # time to tell of an unfinished result, rather than to fail
    return (yield from _poll(seq_id, seconds, patience.begin()))


def generate(prompt: Prompt, sampling: dict[str, Any], patience: Patience) -> Steps[Result]:
    """Submit and wait; nothing is left running on the server for a caller who gave up. Raises what failed there."""
    deadline = patience.begin()
    seq_id = yield from submit(prompt, sampling, deadline)
    try:
        result = yield from _finish(seq_id, deadline)
    except BaseException as error:
        yield from _give_up(seq_id, error)
        raise
    return _checked(result)


def generate_many(prompts: Sequence[Prompt], sampling: dict[str, Any], patience: Patience) -> Steps[list[Result]]:
    """Submit all, wait for all. If one is refused or fails, or the caller gives up, the others are stopped."""
    deadline = patience.begin()
    seq_ids: list[str] = []
    results: list[Result] = []
    try:
        for prompt in prompts:
            seq_ids.append((yield from submit(prompt, sampling, deadline)))
        for seq_id in seq_ids:
            results.append(_checked((yield from _finish(seq_id, deadline))))
    except BaseException:
        for seq_id in seq_ids[len(results) :]:
            with contextlib.suppress(APIError):
                yield Send(messages.cancel(seq_id), FAREWELL)
        raise
    return results


def _checked(result: Result) -> Result:
    if result.status == "failed":
        raise from_envelope(vars(result.error) if result.error else None)
    return result


def stream(prompt: Prompt, sampling: dict[str, Any], patience: Patience) -> Steps[Result]:
    """Submit and follow; a caller who leaves early cancels the request."""
    deadline = patience.begin()
    seq_id = yield from submit(prompt, sampling, deadline)
    try:
        yield Submitted(seq_id)
        return (yield from _follow(seq_id, None, deadline))
    except BaseException as error:
        yield from _give_up(seq_id, error)
        raise


def follow(seq_id: str, starting_after: int | None, patience: Patience) -> Steps[Result]:
    """Watch a request that somebody submitted; leaving early leaves it alone."""
    return (yield from _follow(seq_id, starting_after, patience.begin()))


def cancel(seq_id: str, patience: Patience) -> Steps[None]:
    """Cancel and forget. Raises NotFoundError where there is nothing to cancel."""
    yield from ask(messages.cancel(seq_id), patience.begin())


def probe(path: str, patience: Patience) -> Steps[bool]:
    """Whether GET `path` answers 200 now: asked once."""
    try:
        answer: Answer = yield Send(Request("GET", path), patience.begin().left())
    except APIConnectionError:
        return False
    return answer.status == 200


def _finish(seq_id: str, deadline: Deadline) -> Steps[Result]:
    return (yield from _poll(seq_id, math.inf, deadline))


def _poll(seq_id: str, seconds: float, deadline: Deadline) -> Steps[Result]:
    """Long-poll until the request is finished or `seconds` are over; a server that answers early is not rushed."""
    until = deadline.elapsed() + seconds
    pause = 0.05
    while True:
        asked = deadline.elapsed()
        polled = deadline.left(at_most=min(max(until - asked, 0.0), LONGEST_POLL)) or 0.0
        answer = yield from ask(messages.read(seq_id, polled), deadline)
        result = read_result(answer.json())
        now = deadline.elapsed()
        if result.is_finished or now >= until:
            return result
        if now - asked < polled / 2:
            yield Sleep(min(pause, until - now))
            pause = min(pause * 2, 1.0)


def _follow(seq_id: str, starting_after: int | None, deadline: Deadline) -> Steps[Result]:
    reader = EventReader(starting_after)
    num_failures = 0
    while True:
        seen = reader.last_event_id
        error: APIError
        try:
            result = yield from _read_connection(seq_id, reader, deadline)
            if result is not None:
                return result
            error = APIConnectionError(f"the stream of {seq_id} ended before its last event")
        except APIError as caught:
            error = caught
        num_failures = 1 if reader.last_event_id != seen else num_failures + 1
        yield Sleep(deadline.pause_after(error, num_failures=num_failures))


def _read_connection(seq_id: str, reader: EventReader, deadline: Deadline) -> Steps[Result | None]:
    answer: Answer = yield Open(messages.attach(seq_id, reader.last_event_id), deadline.left(at_most=LONGEST_SILENCE))
    answer.raise_for_status()
    if "text/event-stream" not in answer.headers.get("content-type", ""):
        raise APIError("the server's stream is not text/event-stream; is this a splitfuse server?")
    reader.reattach()
    while True:
        chunk: bytes | None = yield Read(deadline.left(at_most=LONGEST_SILENCE))
        if chunk is None:
            return None
        for event in reader.feed(chunk):
            yield event
            if event.result is not None:
                return event.result


def _give_up(seq_id: str, error: BaseException) -> Steps[None]:
    """Tell the server when the caller left or ran out of time; after any other error there is nothing to stop."""
    if isinstance(error, APIError) and not isinstance(error, APITimeoutError):
        return
    with contextlib.suppress(APIError):  # if this fails it still ends by itself, at max_tokens
        yield Send(messages.cancel(seq_id), FAREWELL)
