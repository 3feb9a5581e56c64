"""What crosses the link comes out as it went in, in whatever pieces the socket hands it over."""

import asyncio
import json
import socket
from typing import Any

import pytest

from splitfuse.engine.core.outputs import StepStats
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.errors import ConstraintError, ContextLengthError, QueueFullError, UnavailableError
from splitfuse.engine.language.chat.reasoning_parser import ReasoningFormat
from splitfuse.engine.language.structured_output.params import StructuredOutputs
from splitfuse.server.extras.fronts.link import (
    Link,
    pack_error,
    pack_params,
    pack_stats,
    read_error,
    read_params,
    read_stats,
)

THINKING = ReasoningFormat(openings=("<think>",), closings=("</think>",), is_open=True)


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(max_tokens=7, temperature=0, stop=("a", "b"), logit_bias={5: -1.5}, seed=2**63, n=3),
        SamplingParams(structured_outputs=StructuredOutputs(json={"type": "object"}, param="response_format")),
        SamplingParams(structured_outputs=StructuredOutputs(choice=["yes", "no"], is_optional=True)),
        SamplingParams(thinking_budget=4, reasoning_format=THINKING),
        SamplingParams(allowed_token_ids=(1, 2), bad_words=("x",), is_background=True, names={"max_tokens": "limit"}),
    ],
)
def test_parameters(params: SamplingParams) -> None:
    assert read_params(through_json(pack_params(params))) == params
    assert pack_params(SamplingParams()) == {}


@pytest.mark.parametrize(
    "error",
    [
        ContextLengthError("too long", param="messages"),
        QueueFullError("full", retry_after_s=2.5),
        ConstraintError("no token", error_id="abc", param="grammar"),
    ],
)
def test_errors_keep_class_message_and_fields(error: Exception) -> None:
    found = read_error(through_json(pack_error(error)))
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


def test_a_foreign_error_becomes_one_that_clients_can_retry() -> None:
    assert isinstance(read_error(pack_error(KeyError("x"))), UnavailableError)


def test_steps() -> None:
    steps = [
        StepStats(
            7, 12.5, 0.25, 3, 4, 5, 6, 7, 8, 1, num_accepted_tokens_per_pos=(2, 1), ttfts=(0.1,), itls=(0.2, 0.3)
        ),
        StepStats(8, 13.5, 0.25, 0, 4, 5, 6, 7, 8, 0),
    ]
    assert read_stats([figure for step in steps for figure in pack_stats(step)]) == steps


async def test_frames_in_pieces() -> None:
    """Byte by byte, then many at once; a frame for a connection that is gone is dropped."""
    frames: list[Any] = []
    lost = asyncio.Event()
    there, here = socket.socketpair(socket.AF_UNIX)
    loop = asyncio.get_running_loop()
    _, sender = await loop.create_connection(lambda: Link(lambda *_: None, lambda: None), sock=there)
    receiver = Link(lambda *frame: frames.append(frame), lost.set)
    assert isinstance(sender, Link)
    sent = [([["state", {"ä": 1}]], [1, 2**32 - 1], [0.5]), ([], [], []), ([], [], [1e300, -0.0])]
    for frame in sent:
        sender.send(*frame)
    here.setblocking(False)
    data = await loop.sock_recv(here, 2**16)
    for position in range(len(data)):
        receiver.data_received(data[position : position + 1])
    receiver.data_received(data * 2)
    assert [(records, list(words), list(figures)) for records, words, figures in frames] == sent * 3
    receiver.connection_lost(None)
    assert lost.is_set()
    receiver.send([["state"]])
    sender.close()
    here.close()
