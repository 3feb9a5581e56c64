"""Shapes: the conversations that a chat template takes, found out by trials, and the repair of all others.

A client may send back any answer of this server. Templates differ in what they take: no content beside a call, ids of
nine letters, one call a message, a system message at the beginning only. A trial shows more than the source does.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from ...errors import InvalidRequestError
from .messages import Message

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]
Call = tuple[str, Mapping[str, Any]]  # name and arguments
Content = Literal["absent", "empty", "null"]
Render = Callable[[Messages, Tools | None], str]
_NAME, _OTHER, _KEY, _VALUE, _RESULT, _TEXT = "mark_tool", "mark_other", "mark_key", "mark_value", "mark_result", "Mark"
_SHORT_ID_CHARS = 9  # Mistral's templates take ids of nine letters or digits only
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}
# Tools in words, for templates that know none. Calls have Hermes' format, which many models have seen and
# NEUTRAL_FORMAT reads.
_OPENING, _CLOSING = "<tool_call>", "</tool_call>"
_INTRODUCTION = """You can call these functions:
{functions}
To call one, answer with its name and its arguments{as_json}:
{example}"""
_EXAMPLE = f'{_OPENING}\n{{"name": "NAME", "arguments": {{"KEY": "VALUE"}}}}\n{_CLOSING}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Repairs that a template needs. By default none; `content`: what stands for the text beside a call without text.

    `shows_tools`, `shows_calls`: the template prints them; if not, they become text of the messages.
    """

    content: Content = "absent"
    has_short_ids: bool = False
    has_parts: bool = False  # a content is a list of parts
    has_tool_list: bool = False  # a conversation without tools has an empty list
    has_whole_tools: bool = False  # each tool has a description and parameters
    has_named_results: bool = False
    has_one_call: bool = False  # a message has one call
    has_text_or_calls: bool = False  # a message has no text beside calls
    has_first_system: bool = False  # a system message is the first one
    has_no_system: bool = False  # a system message is text of the first user's message
    shows_tools: bool = True
    shows_calls: bool = True

    @classmethod
    def found(cls, render: Render) -> "Shapes":
        """Try out a template. `render` raises InvalidRequestError for a conversation that the template refuses."""
        shapes = cls()
        for trial in _TRIALS:
            fields: dict[str, Any] = dict.fromkeys(trial.fallback, False)
            last = replace(shapes, **fields)
            shapes = next((s for s in trial.choices(shapes) if trial.works(s, render)), last)
        return shapes

    def fit(
        self, messages: Messages, tools: Tools | None, *, example: str | None = None
    ) -> tuple[list[Message], list[Message] | None]:
        """Return the conversation and the tools in a form that the template takes and shows.

        `example`: a call in the model's own words, for tools that the template does not show.
        """
        turns = without_nulls(messages)
        if tools and not self.shows_tools:
            turns, tools = _with_system(turns, _introduction(tools, example)), None
        turns = self._with_systems(turns)
        turns = self._with_calls(turns) if self.shows_calls else _calls_as_text(turns)
        for turn in (turn for turn in turns if self.has_parts and isinstance(turn.get("content"), str)):
            turn["content"] = [{"type": "text", "text": turn["content"]}]
        shown = [self._tool(tool) for tool in tools or ()]
        return turns, shown if shown or self.has_tool_list else None

    def _with_systems(self, turns: list[Message]) -> list[Message]:
        first = next((n for n, turn in enumerate(turns) if turn["role"] != "system"), len(turns))
        if self.has_first_system or self.has_no_system:
            late = [{**turn, "role": "user"} if turn["role"] == "system" else turn for turn in turns[first:]]
            moved = [turn is not before for turn, before in zip(late, turns[first:], strict=True)]
            turns = [*_merged(turns[:first], [True] * first), *_merged(late, moved)]
        if self.has_no_system and len(turns) > 1 and turns[0]["role"] == "system":
            text = f"{turns[0]['content']}\n\n{turns[1].get('content', '')}".strip()
            turns = [{**turns[1], "content": text}, *turns[2:]]
        return turns

    def _with_calls(self, turns: list[Message]) -> list[Message]:
        turns = _with_ids(turns)
        if self.has_one_call:
            turns = _with_one_call(turns)
        if self.has_text_or_calls:
            turns = [part for turn in turns for part in _text_then_calls(turn)]
        names = {call.get("id"): call["function"]["name"] for turn in turns for call in turn.get("tool_calls", ())}
        for turn in turns:
            if turn.get("tool_calls") and not turn.get("content"):
                turn.pop("content", None)
                turn.update({} if self.content == "absent" else {"content": "" if self.content == "empty" else None})
            if self.has_named_results and turn["role"] == "tool":
                turn.setdefault("name", names.get(turn.get("tool_call_id"), "tool"))
            if self.has_short_ids:
                _shorten_ids(turn)
        return turns

    def _tool(self, tool: Mapping[str, Any]) -> Message:
        if not self.has_whole_tools:
            return dict(tool)
        function = {"description": "", "parameters": _NO_ARGUMENTS, **tool["function"]}
        function["parameters"] = {**_NO_ARGUMENTS, **function["parameters"]}
        return {**tool, "function": function}


def _introduction(tools: Tools, example: str | None = None) -> str:
    """Describe the tools and the form of a call: that of the `example`, else Hermes'."""
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    as_json = " as JSON" if example is None else ""
    return _INTRODUCTION.format(functions=functions, as_json=as_json, example=example or _EXAMPLE)


def _with_system(messages: Messages, text: str) -> list[Message]:
    """Return the conversation with this text at the end of its system message."""
    if not messages or messages[0]["role"] != "system":
        return [{"role": "system", "content": text}, *map(dict, messages)]
    before = messages[0].get("content") or ""
    return [{**messages[0], "content": f"{before}\n\n{text}".strip()}, *map(dict, messages[1:])]


def _calls_as_text(messages: Messages) -> list[Message]:
    """Return the conversation with calls and results as text; roles alternate as before.

    Earlier calls are in the text of their messages. The results of several tools and the user's text that follows them
    are one message of the user.
    """
    turns: list[Message] = []
    is_joined = False
    for message in messages:
        text = _as_text(message)
        if is_joined and text["role"] == "user":
            turns[-1] = {**turns[-1], "content": f"{turns[-1]['content']}\n{text['content']}"}
        else:
            turns.append(text)
        is_joined = message["role"] == "tool"
    return turns


def _as_text(message: Mapping[str, Any]) -> Message:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    texts = [message["content"]] if message.get("content") else []
    texts += [f"{_OPENING}\n{json.dumps(call['function'], ensure_ascii=False)}\n{_CLOSING}" for call in calls]
    return {**{key: value for key, value in message.items() if key != "tool_calls"}, "content": "\n".join(texts)}


def without_nulls(messages: Messages) -> list[Message]:
    """Leave out keys whose value is null: many templates test for the key alone."""
    return [{name: value for name, value in message.items() if value is not None} for message in messages]


def _merged(turns: Sequence[Message], may_join: Sequence[bool]) -> list[Message]:
    """Join neighbours of one role if one of them may be joined."""
    merged: list[Message] = []
    could = False
    for turn, can in zip(turns, may_join, strict=True):
        if merged and merged[-1]["role"] == turn["role"] and (can or could):
            merged[-1] = {**merged[-1], "content": f"{merged[-1].get('content', '')}\n\n{turn.get('content', '')}"}
        else:
            merged.append(turn)
        could = can
    return merged


def _with_ids(turns: Sequence[Message]) -> list[Message]:
    """Give ids to calls without one, and to the results that follow them."""
    result: list[Message] = []
    waiting: list[str] = []  # ids of calls whose results are still to come
    number = 0
    for turn in turns:
        if turn.get("tool_calls"):
            numbered = enumerate(turn["tool_calls"], number)
            turn = {**turn, "tool_calls": [{"id": f"call{n:05}", **call} for n, call in numbered]}
            number += len(turn["tool_calls"])
            waiting = [call["id"] for call in turn["tool_calls"]]
        elif turn["role"] == "tool":
            if turn.get("tool_call_id") in waiting:
                waiting.remove(turn["tool_call_id"])
            elif waiting and "tool_call_id" not in turn:
                turn = {**turn, "tool_call_id": waiting.pop(0)}
        result.append(turn)
    return result


def _with_one_call(turns: Sequence[Message]) -> list[Message]:
    """Give each call a message of its own, and its result after it."""
    split: list[Message] = []
    waiting: list[Message] = []  # calls whose results are still to come, each in its message
    for turn in turns:
        calls = turn.get("tool_calls") or ()
        if turn["role"] == "tool" and waiting:
            ids = [call["tool_calls"][0].get("id") for call in waiting]
            own = ids.index(turn.get("tool_call_id")) if turn.get("tool_call_id") in ids else 0
            split += [waiting.pop(own), turn]
            continue
        split, waiting = [*split, *waiting], []
        if len(calls) < 2:
            split.append(turn)
        else:
            waiting = [{**(turn if n == 0 else {"role": "assistant"}), "tool_calls": [c]} for n, c in enumerate(calls)]
    return [*split, *waiting]


def _text_then_calls(turn: Message) -> list[Message]:
    if not turn.get("tool_calls") or not turn.get("content"):
        return [turn]
    text = {name: value for name, value in turn.items() if name != "tool_calls"}
    return [text, {"role": "assistant", "tool_calls": turn["tool_calls"]}]


def _shorten_ids(turn: Message) -> None:
    if turn.get("tool_calls"):
        turn["tool_calls"] = [{**call, "id": _short_id(call.get("id", ""))} for call in turn["tool_calls"]]
    if turn["role"] == "tool":
        turn["tool_call_id"] = _short_id(turn.get("tool_call_id", ""))


def _short_id(call_id: str) -> str:
    if len(call_id) == _SHORT_ID_CHARS and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:_SHORT_ID_CHARS]


@dataclass(frozen=True, slots=True)
class _Trial:
    """Conversation whose marks must be in the prompt, the repairs to try one after the other, and the last resort."""

    messages: Messages
    marks: Sequence[str]
    choices: Callable[[Shapes], Iterable[Shapes]]
    tools: Tools | None = None
    fallback: Sequence[str] = ()  # fields that get false

    def works(self, shapes: Shapes, render: Render) -> bool:
        """True if the template shows all marks."""
        try:
            text = render(*shapes.fit(self.messages, self.tools))
        except InvalidRequestError:
            return False
        return all(mark in text for mark in self.marks)


def _either(**fields: Any) -> Callable[[Shapes], Iterable[Shapes]]:
    """Return the choice between the shapes as they are and those with these fields."""
    return lambda shapes: (shapes, replace(shapes, **fields))


def _call_shapes(shapes: Shapes) -> Iterable[Shapes]:
    names = ("has_text_or_calls", "has_named_results", "has_short_ids", "content")
    for values in product(*[(False, True)] * 3, ("absent", "empty", "null")):
        fields: dict[str, Any] = dict(zip(names, values, strict=True))
        yield replace(shapes, **fields)


def trial_call(call_id: str, call: Call) -> Message:
    """Return an entry of a message's calls."""
    return {"id": call_id, "type": "function", "function": {"name": call[0], "arguments": dict(call[1])}}


def trial_tool(name: str, keys: Collection[str]) -> Message:
    """Return a tool that takes strings under these keys."""
    properties = {key: {"type": "string", "description": "Text"} for key in keys}
    parameters = {"type": "object", "properties": properties, "required": list(keys)}
    return _tool(name, description="Does it.", parameters=parameters)


def _call(number: int, name: str, value: str) -> Message:
    return trial_call(f"call_{number:024}", (name, {_KEY: value}))


def _result(number: int, text: str) -> Message:
    return {"role": "tool", "tool_call_id": f"call_{number:024}", "content": text}


def _system(text: str) -> Message:
    return {"role": "system", "content": text}


def _tool(name: str, **fields: Any) -> Message:
    return {"type": "function", "function": {"name": name, **fields}}


_ASK: Message = {"role": "user", "content": "Mark 0"}
_SAY: Message = {"role": "assistant", "content": "Mark 1"}
_MORE: Message = {"role": "user", "content": "Mark 2"}
_ONE: Message = {"role": "assistant", "tool_calls": [_call(1, _NAME, _VALUE)]}
_TWO: Message = {"role": "assistant", "tool_calls": [_call(1, _NAME, _VALUE), _call(2, _OTHER, "value_2")]}
_TOOLS = [trial_tool(name, [_KEY]) for name in (_NAME, _OTHER)]
_NO_CALLS = ["shows_calls"]
_TRIALS = (
    _Trial([_ASK], ["Mark 0"], _either(has_tool_list=True)),
    _Trial([_ASK], ["Mark 0"], _either(has_parts=True)),
    _Trial([_system("Mark 5"), _ASK], ["Mark 5", "Mark 0"], _either(has_no_system=True)),
    _Trial(
        [_system("Mark 5"), _system("Mark 6"), _ASK, _SAY, _system("Mark 7"), _MORE],
        ["Mark 5", "Mark 6", "Mark 0", "Mark 1", "Mark 7", "Mark 2"],
        _either(has_first_system=True),
    ),
    _Trial([_ASK], [_NAME, _KEY, _OTHER], _either(), _TOOLS, ["shows_tools"]),
    _Trial([_ASK], [_NAME], _either(has_whole_tools=True), [_tool(_NAME)]),
    _Trial(
        [_ASK, _ONE, _result(1, _RESULT), _SAY, _MORE],
        ["Mark 0", _NAME, _VALUE, _RESULT, "Mark 1", "Mark 2"],
        *(_call_shapes, _TOOLS, _NO_CALLS),
    ),
    _Trial(
        [_ASK, {**_ONE, "content": "Mark 8"}, _result(1, _RESULT)],
        ["Mark 0", "Mark 8", _VALUE, _RESULT],
        *(_either(has_text_or_calls=True), _TOOLS, _NO_CALLS),
    ),
    _Trial(
        [_ASK, _TWO, _result(1, _RESULT), _result(2, "result_2")],
        ["Mark 0", _VALUE, "value_2"],
        *(_either(has_one_call=True), _TOOLS, _NO_CALLS),
    ),
)
