"""Chat: requests to /v1/chat/completions as plain values, the reading of answers and streams, and schemas of types.

Knows pydantic's models by their methods alone. Sends nothing.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .errors import APIError, from_envelope
from .events import read_object
from .messages import Request
from .results import Usage, read_chat_usage
from .sse import SSEParser

Messages = str | Sequence[Mapping[str, Any]]
# JSON schema, or a pydantic model class.
Schema = Mapping[str, Any] | type[Any]


@dataclass(frozen=True)
class ToolCall:
    """Call of a tool; `arguments` is JSON."""

    id: str
    name: str
    arguments: str

    def parsed(self) -> Any:
        """Return the arguments as a value. Raises ValueError if they are cut."""
        return json.loads(self.arguments)


@dataclass(frozen=True)
class ChatAnswer:
    """Answer to a conversation: text, calls of tools, or both."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    id: str = ""
    model: str = ""
    schema: Schema | None = field(default=None, repr=False)

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, for the conversation that goes on."""
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in self.tool_calls
        ]
        return {"role": "assistant", "content": self.text or None} | ({"tool_calls": calls} if calls else {})

    def parsed(self) -> Any:
        """Return the text as the model of `schema`, or as JSON's value. Raises ValueError if the text is cut."""
        validate = getattr(self.schema, "model_validate_json", json.loads)
        return validate(self.text)


@dataclass(frozen=True)
class ChatDelta:
    """New part of a streamed answer. The last one has the whole `answer` and nothing new."""

    text: str = ""
    reasoning: str = ""
    answer: ChatAnswer | None = None


def tool(schema: Schema, *, name: str | None = None, description: str | None = None) -> dict[str, Any]:
    """Return OpenAI's form of a tool whose parameters are a pydantic model, or a JSON schema with a title."""
    parameters = json_schema(schema)
    function = {
        "name": name or str(parameters.get("title", "tool")),
        "description": description or parameters.get("description"),
        "parameters": parameters,
    }
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def response_format(schema: Schema) -> dict[str, Any]:
    """Return OpenAI's `response_format` that asks for a pydantic model, or for a JSON schema."""
    parameters = json_schema(schema)
    name = "".join(char if char.isalnum() else "_" for char in str(parameters.get("title", "answer")))
    return {"type": "json_schema", "json_schema": {"name": name, "schema": parameters, "strict": True}}


def json_schema(schema: Schema) -> dict[str, Any]:
    """Return the JSON schema of a pydantic model, or a schema itself. Raises TypeError for other types."""
    if isinstance(schema, Mapping):
        return dict(schema)
    if not hasattr(schema, "model_json_schema"):
        raise TypeError(f"a schema is a dict or a pydantic model class, not {schema!r}")
    found: dict[str, Any] = schema.model_json_schema()
    return found


def request(
    messages: Messages,
    *,
    tools: Sequence[Schema] | None,
    schema: Schema | None,
    fields: Mapping[str, Any],
    stream: bool = False,
) -> Request:
    """Return POST /v1/chat/completions; fields that are None are left out."""
    conversation = [{"role": "user", "content": messages}] if isinstance(messages, str) else [*messages]
    body: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    if tools is not None:
        body["tools"] = [item if _is_tool(item) else tool(item) for item in tools]
    if schema is not None:
        body["response_format"] = response_format(schema)
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    content = json.dumps({"messages": conversation, **body}).encode()
    return Request("POST", "/v1/chat/completions", {"content-type": "application/json"}, content)


def _is_tool(item: Schema) -> bool:
    return isinstance(item, Mapping) and "function" in item


def read_answer(data: Any, *, schema: Schema | None) -> ChatAnswer:
    """Return the answer that JSON states. Raises APIError if the JSON is no chat completion."""
    try:
        choice = data["choices"][0]
        message = choice["message"]
        calls = [_call(call) for call in message.get("tool_calls") or ()]
    except (KeyError, IndexError, TypeError, AttributeError) as exc:
        raise APIError("the server answered with something that is not a chat completion") from exc
    return ChatAnswer(
        message.get("content") or "",
        message.get("reasoning_content") or "",
        tuple(calls),
        choice.get("finish_reason"),
        read_chat_usage(data.get("usage")),
        data.get("id", ""),
        data.get("model", ""),
        schema,
    )


def _call(call: Mapping[str, Any]) -> ToolCall:
    return ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])


class ChatReader:
    """Reader of the chunks of a streamed answer. `has_ended`: True after the last event."""

    def __init__(self, schema: Schema | None) -> None:
        self.has_ended = False
        self._answer = ChatAnswer(schema=schema)
        self._calls: dict[int, ToolCall] = {}
        self._parser = SSEParser()

    def feed(self, chunk: bytes) -> Iterator[ChatDelta]:
        """Yield new parts in order. Raises the APIError of an error event."""
        for event in self._parser.feed(chunk):
            if event.data == "[DONE]":
                self.has_ended = True
                yield ChatDelta(answer=replace(self._answer, tool_calls=tuple(self._calls.values())))
                return
            delta = self._read(read_object(event.data))
            if delta.text or delta.reasoning:
                yield delta

    def _read(self, data: dict[str, Any]) -> ChatDelta:
        if "error" in data:
            raise from_envelope(data["error"])
        answer = replace(self._answer, id=data.get("id", ""), model=data.get("model", ""))
        if data.get("usage"):
            answer = replace(answer, usage=read_chat_usage(data["usage"]))
        delta = ChatDelta()
        for choice in data.get("choices") or ():
            if choice.get("index"):
                continue  # `n` above 1: the answer is the first choice
            new = choice.get("delta") or {}
            self._add_calls(new.get("tool_calls") or ())
            delta = ChatDelta(new.get("content") or "", new.get("reasoning_content") or "")
            answer = replace(
                answer,
                text=answer.text + delta.text,
                reasoning=answer.reasoning + delta.reasoning,
                finish_reason=choice.get("finish_reason") or answer.finish_reason,
            )
        self._answer = answer
        return delta

    def _add_calls(self, calls: Sequence[Mapping[str, Any]]) -> None:
        for call in calls:
            known = self._calls.get(call["index"], ToolCall("", "", ""))
            function = call.get("function") or {}
            self._calls[call["index"]] = ToolCall(
                call.get("id") or known.id,
                function.get("name") or known.name,
                known.arguments + (function.get("arguments") or ""),
            )
