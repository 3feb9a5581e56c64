"""Derivation of a CallSyntax and of the tags of reasoning, from what a template writes of conversations with marks."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...errors import ConfigError, InvalidRequestError
from .call_formats import CALL_FORMATS
from .call_syntax import ID, NAME, NUMBER, TAG, CallSyntax
from .harmony_parser import CHANNEL, MESSAGE
from .reasoning_parser import REASONING_FORMATS, ReasoningFormat
from .shapes import Call, trial_call, trial_tool

Ask = Callable[..., str]  # renders messages; raises InvalidRequestError if the template refuses them
USER = {"role": "user", "content": "MarkUser"}
_TEXT, _THOUGHT = "MarkText", "MarkThought"
_KEYS, _VALUES = ("mark_key_a", "mark_key_b"), ("mark_value_a", "mark_value_b")
_CALLS: Sequence[Call] = (
    ("mark_call_a", dict(zip(_KEYS, _VALUES, strict=True))),
    ("mark_call_b", {"mark_key_c": "mark_value_c"}),
)


TOOLS = [trial_tool(*call) for call in _CALLS]
_UNESCAPED = "x'y\"z"
_IDS = ("aB3dE6gH9", "bC4eF7hI0")
_CLOSINGS = re.compile(r"</[\w:]*think[\w:]*>|\[/THINK\]|<\|END_THINKING\|>")
_OPENED = re.compile(r"(<[\w:]*think[\w:]*>|\[THINK\])\s*$")
_THINKING_NAMES = ("reasoning_content", "reasoning", "thinking", "tool_plan")
_VARIABLES: Sequence[Mapping[str, Any]] = ({}, {"enable_thinking": True, "thinking": True}, {"enable_thinking": False})


class CallTrials:
    """Trials of calls with one template. `is_parallel`: the template shows two calls of one message."""

    def __init__(self, ask: Ask, *, is_parallel: bool, thoughts: ReasoningFormat | None) -> None:
        self._ask = ask
        self._is_parallel = is_parallel
        self._thoughts = thoughts
        self._head = _head(ask)

    def _plain(self, tools: Any) -> tuple[str, str]:
        """Return the texts before and after an answer of text alone."""
        text = self._ask([USER, {"role": "assistant", "content": _TEXT}], tools=tools, add_generation_prompt=False)
        header, _, footer = text.partition(_TEXT)
        return header, footer

    def answer_text(self, calls: Sequence[Call], *, ids: Sequence[str] = (), tools: Any = None) -> str:
        """Return an answer of these calls in the template's own words."""
        tools = TOOLS if tools is None else tools
        header, footer = self._plain(tools)
        ids = [*ids, *(f"call_{number:024}" for number in range(len(ids), len(calls)))]
        message = {"role": "assistant", "tool_calls": list(map(trial_call, ids, calls))}
        text = self._ask([USER, message], tools=tools, add_generation_prompt=False)
        _, found, answer = _behind_user(text).partition(self._head or "\0")
        text = answer if found else text[len(_common_start(text, header)) :]
        text = text[: len(text) - len(_common_end(text, footer))].strip()
        return text if self._thoughts is None else self._thoughts.without_empty(text)

    def syntax(self) -> CallSyntax:
        """Derive the syntax. Raises ConfigError with the reason."""
        calls = _CALLS if self._is_parallel else _CALLS[:1]
        text = self.answer_text(calls, ids=_IDS[: len(calls)])
        if f"to=functions.{calls[0][0]}" in text and CHANNEL in text and MESSAGE in text:
            return CALL_FORMATS["openai"]
        for call_id in _IDS:
            text = text.replace(call_id, ID)
        places = _places(text, calls)
        ends = [*(place.start for place in places[1:]), len(text)]
        end_tag = TAG.match(self._plain(TOOLS)[1])
        tails = [text[place.finish : end] for place, end in zip(places, ends, strict=True)]
        trailer = ""
        if end_tag is not None:
            tails[-1], _, more = tails[-1].partition(end_tag[0])
            trailer = " ".join([end_tag[0], *TAG.findall(more)])
        names = [name for name, _ in calls]
        tails = [*(tail.replace(name, NAME) for tail, name in zip(tails, names[1:], strict=False)), tails[-1]]
        heads = [text[: places[0].start].replace(names[0], NAME), *tails[:-1]]
        middles = [text[place.end : place.begin] for place in places]
        heads, middles, tails = _numbered(heads, middles, tails)
        if len(set(middles)) > 1:
            raise ConfigError(f"the texts between name and arguments of two calls differ: {middles}")
        fields: dict[str, Any] = {"arguments": "json", "middle": middles[0], "is_text": places[0].is_text}
        if not places[0].is_json:
            fields, tails = self._values(text, places[0], tails)
        if self._is_parallel:
            heads = [heads[0], tails[0]]
            opening = _common_end(*heads)
            inner = tails[0][: len(tails[0]) - len(opening)]
            closing = _common_start(inner, tails[1])
            around: dict[str, Any] = {"opening": opening, "closing": closing, "after": tails[1][len(closing) :]}
            around |= {"before": heads[0][: len(heads[0]) - len(opening)], "between": inner[len(closing) :]}
        else:
            around = {"opening": heads[0], "closing": tails[0]}
        return _with_object(CallSyntax(**fields, **around, trailer=trailer), text, places[0], calls[0])

    def _values(self, text: str, place: "_Place", tails: list[str]) -> tuple[dict[str, Any], list[str]]:
        """Return the texts around keys and values, and the texts after calls without the last value's end."""
        keys, values = ([text.index(mark, place.end) for mark in marks] for marks in (_KEYS, _VALUES))
        before = text[place.end : keys[0]]
        string_open = text[keys[0] + len(_KEYS[0]) : values[0]]
        join = text[values[0] + len(_VALUES[0]) : keys[1]]
        key_open = _common_end(before, join)
        join = join[: len(join) - len(key_open)]
        value_close = _common_start(join, tails[0])
        tails = [tail.removeprefix(value_close) for tail in tails]
        number = self.answer_text([("mark_call_a", {_KEYS[0]: 7})])
        key_end = number.index(_KEYS[0]) + len(_KEYS[0])
        value_open = number[key_end : number.index("7", key_end)]
        quote = string_open.removeprefix(value_open) if string_open.startswith(value_open) else ""
        fields = {"key_open": key_open, "middle": before[: len(before) - len(key_open)], "unescaped": ""}
        if value_close and value_open.endswith(value_close):
            quote, fields["unescaped"] = value_close, "all"
            value_open = value_open.removesuffix(quote)
        elif len(quote) == 1 and _UNESCAPED in self.answer_text([("mark_call_a", {_KEYS[0]: _UNESCAPED})]):
            fields["unescaped"] = "strings"
        if not value_close.startswith(quote):
            raise ConfigError(f"a string begins with {quote!r} and does not end with it")
        fields |= {"value_open": value_open, "quote": quote, "string_open": "" if quote else string_open}
        fields |= {"separator": join[len(value_close) :], "value_close": value_close.removeprefix(quote)}
        return {"arguments": "keywords" if quote else "tags", **fields}, tails


class _Place(NamedTuple):
    """A call in the text: its name is text[start:end], its arguments text[begin:finish]."""

    start: int
    end: int
    begin: int
    finish: int
    is_json: bool
    is_text: bool


def _places(text: str, calls: Sequence[Call]) -> list[_Place]:
    places: list[_Place] = []
    position = 0
    for name, arguments in calls:
        start = text.find(name, position)
        if start < 0:
            raise ConfigError("the template does not show the names of calls in their order")
        key = text.find(next(iter(arguments)), start)
        start = max(text.rfind(name, start, key), start)  # the last of several times
        end = start + len(name)
        begin, finish, is_text = _json_place(text, end, arguments)
        if is_keyed := begin < 0:
            if any(text.find(mark, end) < 0 for pair in arguments.items() for mark in pair):
                raise ConfigError("the template does not show a call's arguments after its name")
            begin, finish = end, max(text.find(value, end) + len(value) for value in arguments.values())
        places.append(_Place(start, end, begin, finish, is_json=not is_keyed, is_text=is_text))
        position = finish
    return places


def _json_place(text: str, position: int, value: Any) -> tuple[int, int, bool]:
    """Return where JSON of this value begins and ends, or -1, and True if the JSON is within a string."""
    decoder = json.JSONDecoder(strict=False)
    for found in re.finditer('[{"]', text[position:]):
        begin = position + found.start()
        try:
            decoded, finish = decoder.raw_decode(text, begin)
            if decoded == value:
                return begin, finish, False
            if isinstance(decoded, str) and json.loads(decoded) == value:
                return begin, finish, True
        except ValueError:
            continue
    return -1, -1, False


def _numbered(heads: list[str], middles: list[str], tails: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Put the place of a number where both calls have theirs, counted from 0 or 1."""
    for base in (0, 1):
        for pieces in (heads, middles):
            patterns = [re.compile(rf"(?<!\w){base + number}(?!\w)") for number in range(len(pieces))]
            if len(pieces) > 1 and all(p.search(piece) for p, piece in zip(patterns, pieces, strict=True)):
                pieces[:] = [p.sub(NUMBER, piece) for p, piece in zip(patterns, pieces, strict=True)]
    return heads, middles, [*heads[1:], tails[-1]]


def _with_object(syntax: CallSyntax, text: str, place: _Place, call: Call) -> CallSyntax:
    """Return the syntax of calls that are JSON objects, if the name and the arguments stand in one."""
    brace = syntax.opening.rfind("{")
    if brace < 0 or syntax.arguments != "json":
        return syntax
    start = place.start - (len(syntax.opening) - brace)
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text, start)
    except ValueError:
        return syntax
    keys = [key for key in value if value[key] == call[0]]
    other = [key for key in value if value[key] in (call[1], json.dumps(call[1]))]
    inner = text[place.finish : end]
    if not keys or not other or not syntax.closing.startswith(inner):
        return syntax
    names = {"name_key": keys[0], "arguments_key": other[0], "name_open": syntax.opening[brace:]}
    names |= {"opening": syntax.opening[:brace], "arguments_close": inner, "closing": syntax.closing[len(inner) :]}
    return replace(syntax, **names)


def _behind_user(text: str) -> str:
    return text.rpartition(USER["content"])[2]


def _head(ask: Ask, **options: Any) -> str:
    """Return what a prompt has for the beginning of an answer."""
    without, prompt = (
        _behind_user(ask([USER], add_generation_prompt=is_asked, **options)) for is_asked in (False, True)
    )
    return prompt[len(_common_start(prompt, without)) :].strip()


def content_tags(ask: Ask, thoughts: ReasoningFormat | None) -> tuple[str, str]:
    """Return the texts before and after content that an answer has itself: no prompt ends with the first one."""
    text, prompt = _text(ask, {"role": "assistant", "content": _TEXT}, {}), _behind_user(_text(ask, None, {})).rstrip()
    before, _, after = _behind_user(text).partition(_TEXT)
    opening = before[len(_common_start(before, prompt)) :].strip()
    for tag in () if thoughts is None else thoughts.closings:
        opening = opening.rpartition(tag)[2].strip()
    closing = (TAG.match(after.strip()) or [""])[0]
    pair = closing.replace("END", "START").replace("/", "")
    is_paired = pair != closing and (prompt + before).endswith(pair)
    return "" if prompt.endswith(opening) else opening, closing if is_paired else ""


def _common_prefix(text: str, other: str) -> str:
    length = next((n for n, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    return text[:length]


def _common_start(text: str, other: str) -> str:
    """Return the common beginning, which ends within no tag."""
    start = _common_prefix(text, other)
    for whole in (text, other):
        opened = start.rfind("<")
        if opened > start.rfind(">") and len(whole) > len(start):
            start = start[:opened]
    return start


def _common_end(text: str, other: str) -> str:
    """Return the common ending, which begins within no tag."""
    end = _common_prefix(text[::-1], other[::-1])[::-1]
    for whole in (text, other):
        before = whole[: len(whole) - len(end)]
        if before.rfind("<") > before.rfind(">"):
            end = end.partition(">")[2]
    return end


def thoughts_of(ask: Ask, source: str) -> ReasoningFormat | None:
    """Find out what opens and closes reasoning, None if the template shows none."""
    prompts = [_text(ask, None, variables) for variables in _VARIABLES]
    for variables in _VARIABLES:
        for has_calls in (False, True):
            found = _shown_thoughts(ask, variables, has_calls=has_calls)
            if found is not None:
                return found if found.openings != ("",) else None
    for closing in dict.fromkeys(_CLOSINGS.findall(source)):
        opening = closing.replace("/", "").replace("END", "START")
        cut = _text(ask, {"role": "assistant", "content": f"{opening}{_THOUGHT}{closing}{_TEXT}"}, {})
        is_asked = any(prompt.rstrip().endswith((opening, closing)) for prompt in prompts)
        if is_asked or (_TEXT in cut and _THOUGHT not in cut):
            return ReasoningFormat(openings=(opening,), closings=(closing,), is_open=opening not in source)
    opened = _OPENED.search(prompts[0])
    if opened is not None:  # the prompt alone shows it
        return ReasoningFormat(openings=(opened[1],), closings=(opened[1][0] + "/" + opened[1][1:],))
    known = (form for form in REASONING_FORMATS.values() if any(tag in source for tag in form.openings))
    return next(known, None)  # a request's own variable may show it


def _shown_thoughts(ask: Ask, variables: Mapping[str, Any], *, has_calls: bool) -> ReasoningFormat | None:
    thoughts = {"role": "assistant", **dict.fromkeys(_THINKING_NAMES, _THOUGHT)}
    shown = {"tool_calls": [trial_call(_IDS[0], _CALLS[1])]} if has_calls else {"content": _TEXT}
    text = _text(ask, thoughts | shown, variables)
    before, found, after = text.partition(_THOUGHT)
    if not found:
        return None
    plain = _text(ask, {"role": "assistant", "content": _TEXT}, variables)
    before = _behind_user(before)
    headers = (_behind_user(_text(ask, None, variables)), _behind_user(plain).partition(_TEXT)[0])
    own = [before[len(_common_start(before, header)) :].strip() for header in headers]
    opening = max(own, key=len)
    if CHANNEL in opening and MESSAGE in opening:
        return REASONING_FORMATS["openai_gptoss"]
    if not opening:
        opening = (TAG.findall(before) or [""])[-1]
    closing = TAG.match(after.strip())
    if closing is None:
        return None
    again = closing[0] + _head(ask, variables=variables)  # the rest of the answer is a message of its own
    return ReasoningFormat(openings=(opening,), closings=(again if again in after else closing[0],))


def _text(ask: Ask, message: Mapping[str, Any] | None, variables: Mapping[str, Any]) -> str:
    """Return an answer in its conversation, or the prompt; "" if the template refuses it."""
    try:
        messages = [USER] if message is None else [USER, message]
        return ask(messages, add_generation_prompt=message is None, variables=variables)
    except InvalidRequestError:
        return ""
