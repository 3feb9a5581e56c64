"""Chats with a real server: whole and streamed, with tools, and with the form of a schema."""

from typing import Any, Literal

import pytest
from pydantic import BaseModel

from splitfuse.client import (
    APIConnectionError,
    APIError,
    BadRequestError,
    ChatAnswer,
    ChatDelta,
    Server,
    response_format,
    tool,
)

from .conftest import KEY, MakeCaller
from .server_thread import ServerThread

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8}


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Seoul", "Recife"]
    days: Literal[1, 2]


def test_a_stream_joins_to_the_whole_answer(make_caller: MakeCaller, server: Server) -> None:
    caller = make_caller(server.base_url, api_key=KEY)
    answer: ChatAnswer = caller.run(caller.client.chat("Tell me a story.", **GREEDY))
    assert answer.text
    assert answer.usage.completion_tokens == 8
    assert answer.finish_reason == "length"
    deltas: list[ChatDelta] = caller.collect(caller.client.chat_stream("Tell me a story.", **GREEDY))
    assert "".join(delta.text for delta in deltas) == answer.text
    streamed = deltas[-1].answer
    assert streamed is not None
    assert (streamed.text, streamed.usage, streamed.model) == (answer.text, answer.usage, answer.model)
    again = [{"role": "user", "content": "Tell me a story."}, answer.message, {"role": "user", "content": "Go on."}]
    assert caller.run(caller.client.chat(again, **GREEDY)).text


def test_an_answer_has_the_form_of_a_schema(make_caller: MakeCaller, server: Server) -> None:
    caller = make_caller(server.base_url, api_key=KEY)
    fields: dict[str, Any] = {"max_tokens": 64, "seed": 3}
    answer = caller.run(caller.client.chat("The weather?", schema=Weather, **fields))
    assert isinstance(answer.parsed(), Weather)
    plain = caller.run(caller.client.chat("The weather?", schema=Weather.model_json_schema(), **fields))
    assert Weather.model_validate(plain.parsed()) == answer.parsed()
    deltas = caller.collect(caller.client.chat_stream("The weather?", schema=Weather, **fields))
    assert deltas[-1].answer.parsed() == answer.parsed()


def test_tools_are_called(make_caller: MakeCaller, server: Server) -> None:
    caller = make_caller(server.base_url, api_key=KEY)
    fields: dict[str, Any] = {"tools": [Weather], "tool_choice": "required", "max_tokens": 100, "seed": 3}
    answer = caller.run(caller.client.chat("Is it sunny?", **fields))
    call = answer.tool_calls[0]
    assert call.name == "Weather"
    assert Weather.model_validate(call.parsed())
    streamed = caller.collect(caller.client.chat_stream("Is it sunny?", **fields))[-1].answer
    assert [(c.name, c.arguments) for c in streamed.tool_calls] == [(c.name, c.arguments) for c in answer.tool_calls]
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    conversation = [{"role": "user", "content": "Is it sunny?"}, answer.message, result]
    assert caller.run(caller.client.chat(conversation, **GREEDY)).finish_reason


def test_refusals_are_errors(make_caller: MakeCaller, server: Server) -> None:
    caller = make_caller(server.base_url, api_key=KEY)
    with pytest.raises(BadRequestError, match="top_p"):
        caller.run(caller.client.chat("Hello", top_p=3))
    with pytest.raises(BadRequestError, match="top_p"):
        caller.collect(caller.client.chat_stream("Hello", top_p=3))
    with pytest.raises(TypeError, match="pydantic model class"):
        response_format(int)


def test_a_tool_keeps_its_own_form() -> None:
    assert tool(Weather)["function"]["name"] == "Weather"
    assert tool(Weather, name="weather", description="Forecast.")["function"]["description"] == "Forecast."
    assert tool({"type": "object"})["function"] == {"name": "tool", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    ("body", "kind", "error"),
    [
        ("data: {}\n\n", "text/event-stream", APIConnectionError),
        ("data: no\n\n", "text/event-stream", APIError),
        ('data: {"error": {"message": "broken", "type": "server_error"}}\n\n', "text/event-stream", APIError),
        ("{}", "application/json", APIError),
    ],
)
def test_a_broken_stream_is_an_error(make_caller: MakeCaller, body: str, kind: str, error: type[Exception]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind.encode())]})
            await send({"type": "http.response.body", "body": body.encode()})

    with ServerThread(app) as thread:  # type: ignore[arg-type]
        caller = make_caller(thread.url)
        with pytest.raises(error):
            caller.collect(caller.client.chat_stream("Hello"))
        with pytest.raises(APIError):
            caller.run(caller.client.chat("Hello"))
