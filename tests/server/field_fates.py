"""Fates of the fields that the official packages can send: each is sent to the parser of its route.

A field is acted on (the request reads otherwise with it), ignored aloud (X-Ignored-Fields names it) or refused by name.
sdk_fields.json lists the fields, with a sample each; tests/tools/sdk_fields.py writes it from the packages' types.
"""

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fastapi.routing import APIRoute
from starlette.datastructures import FormData, UploadFile

from splitfuse.engine.errors import InvalidRequestError
from splitfuse.server.api.chat.timed_route import LimitedRoute
from splitfuse.server.apis.anthropic.request import CountTokensRequest, MessagesRequest
from splitfuse.server.apis.openai.request import ChatCompletionRequest, CompletionRequest
from splitfuse.server.apis.responses.request import ResponsesRequest
from splitfuse.server.app import build_app
from splitfuse.server.results.batches.request import BatchRequest, uploaded
from splitfuse.server.settings import Settings

FIELDS = json.loads((Path(__file__).parent / "sdk_fields.json").read_text(encoding="utf-8"))
ACTED, IGNORED, REFUSED, SILENT = "acted on", "ignored aloud", "refused", "no fate"
CARRIES_NOTHING = "nothing to do"
# Fields that need no act, by a pattern of their paths: the reason.
NATURE = {
    r".*cache_control.*": "every prompt is cached",
    r"(.*content|system)\[text\]\.citations.*": "sources of an earlier answer; its text stays",
    r".*\[(document|search_result)\]\.citations": "asks for nothing",
    r".*\.signature": "an earlier answer's",
    r".*\.media_type": "text/plain is the only one",
    r"input\[\w+\]\.(id|status)": "an earlier answer's",
    r"input\[reasoning\]\.summary.*": "an earlier answer's; its reasoning is read",
    r"tool_choice(\(auto\))?": "the default",
    r"tools\[custom\](\.custom)?\.format(\(text\))?": "the default",
    r"tools\[\]\.type": "the default",
}
HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FUNCTION = {"name": "x", "parameters": SCHEMA}
CHAT_TOOLS = [{"type": "function", "function": FUNCTION}]
FLAT_TOOLS = [{"type": "function", **FUNCTION}]
TOOLS = [{"name": "x", "input_schema": SCHEMA}]
Read = tuple[Any, tuple[str, ...]]  # the effect of a request, and the fields that it ignored
_RAW = {"messages", "tools", "input", "system", "functions", "function_call", "tool_choice", "requests", "items"}


class Fate(NamedTuple):
    """Fate of a field. `note`: the refusal."""

    kind: str
    note: str = ""


def _effect(body: Any, *read: object) -> Read:
    shown = body.model_dump(exclude=_RAW)
    return (repr((shown, sorted(body.model_fields_set - _RAW), read)), body.ignored_fields)


def _chat(fields: Mapping[str, Any]) -> Read:
    body = ChatCompletionRequest.read(fields)
    return _effect(body, body.chat(), body.params(), body.shown)


def _completion(fields: Mapping[str, Any]) -> Read:
    body = CompletionRequest.read(fields)
    return _effect(body, body.prompts(), body.params())


def _response(fields: Mapping[str, Any]) -> Read:
    body = ResponsesRequest.read(fields)
    messages = body.messages([])
    return _effect(body, body.chat(messages), body.params())


def _message(fields: Mapping[str, Any]) -> Read:
    body = MessagesRequest.read(fields)
    return _effect(body, body.chat(), body.params())


def _count(fields: Mapping[str, Any]) -> Read:
    body = CountTokensRequest.read(fields)
    return _effect(body, body.chat())


def _batch(fields: Mapping[str, Any]) -> Read:
    return _effect(BatchRequest.read(fields))


def _file(fields: Mapping[str, Any]) -> Read:
    form = {name: value for name, value in fields.items() if not isinstance(value, dict)}
    nested = {
        f"{name}[{key}]": str(v) for name, value in fields.items() if name not in form for key, v in value.items()
    }
    file, ttl_s = uploaded(FormData({**form, **nested, "file": UploadFile(None, filename=str(fields.get("file")))}))
    return repr((file.filename, ttl_s, form.get("purpose"), sorted(nested))), ()


@cache
def _routes() -> dict[str, APIRoute]:
    app = build_app(Settings())
    app.state.lazy_routes.load_all()
    routes = [route for router in app.state.lazy_routes.loaded for route in router.routes]
    return {f"{min(route.methods or ())} {route.path}": route for route in routes if isinstance(route, APIRoute)}


def _query(route: str) -> Callable[[Mapping[str, Any]], Read]:
    """Read a query like the route: by the names of its parameters."""
    path = re.sub(r"\{\w+\}", "{}", route)
    found = next(found for name, found in _routes().items() if re.sub(r"\{\w+\}", "{}", name) == path)
    dependants = (found.dependant, *found.dependant.dependencies)
    names = {param.alias for node in dependants for param in node.query_params}
    names_others = isinstance(found, LimitedRoute)

    def read(fields: Mapping[str, Any]) -> Read:
        return repr(sorted(names & fields.keys())), tuple(fields.keys() - names) if names_others else ()

    return read


# By route: its parser, the rest of a valid body, values by path, and the fields that go with a field.
READERS: dict[str, tuple[Callable[[Mapping[str, Any]], Read], dict[str, Any]]] = {
    "POST /v1/chat/completions": (_chat, {"messages": HELLO}),
    "POST /v1/completions": (_completion, {"prompt": "Hello"}),
    "POST /v1/responses": (_response, {"input": "Hello"}),
    "POST /v1/responses/input_tokens": (_response, {"input": "Hello"}),
    "POST /v1/files": (_file, {"file": "x", "purpose": "batch"}),
    "POST /v1/batches": (
        _batch,
        {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h"},
    ),
    "POST /v1/messages": (_message, {"messages": HELLO, "max_tokens": 5}),
    "POST /v1/messages/count_tokens": (_count, {"messages": HELLO}),
}


NEEDS: dict[str, dict[str, dict[str, Any]]] = {
    "POST /v1/chat/completions": {
        "stream_options": {"stream": True},
        "top_logprobs": {"logprobs": True},
        "tool_choice": {"tools": CHAT_TOOLS},
        "function_call": {"functions": [FUNCTION]},
    },
    "POST /v1/completions": {"stream_options": {"stream": True}},
    "POST /v1/responses": {"tool_choice": {"tools": FLAT_TOOLS}},
    "POST /v1/responses/input_tokens": {"tool_choice": {"tools": FLAT_TOOLS}},
    "POST /v1/messages": {"tool_choice": {"tools": TOOLS}},
    "POST /v1/messages/count_tokens": {"tool_choice": {"tools": TOOLS}},
}
VALUES: dict[str, Any] = {"logit_bias": {"5": 1}, "endpoint": "/generate", "function_call": "none"}


def reader(route: str) -> tuple[Callable[[Mapping[str, Any]], Read], dict[str, Any]] | None:
    """Return the parser and the rest of a valid body; None where the route is not served."""
    if route.startswith("GET "):
        return _query(route), {}
    return READERS.get(route)


def fates(route: str) -> dict[str, Fate]:
    """Return the fate of each field of a route."""
    found = reader(route)
    assert found is not None, route
    read, base = found
    needs = NEEDS.get(route, {})
    return {
        path: fate(read, {**base, **needs.get(_top(path), {})}, path, sample)
        for path, sample in FIELDS["requests"][route].items()
    }


def _top(path: str) -> str:
    return re.split(r"[.\[(]", path)[0]


def fate(read: Callable[[Mapping[str, Any]], Read], base: dict[str, Any], path: str, sample: Any) -> Fate:
    """Send a field, and a request without it."""
    fields = {**base, _top(path): copy.deepcopy(VALUES.get(path, sample))}
    _complete(fields)
    place = _leaf(fields, path)
    try:
        effect, ignored = read(fields)
    except InvalidRequestError as exc:
        return Fate(REFUSED, str(exc))
    if any(_names(name, path) for name in ignored):
        return Fate(IGNORED)
    del place[0][place[1]]
    try:
        if read(fields)[0] != effect:
            return Fate(ACTED)
    except InvalidRequestError:  # it is required
        return Fate(ACTED)
    reason = next((reason for pattern, reason in NATURE.items() if re.fullmatch(pattern, path)), None)
    return Fate(SILENT) if reason is None else Fate(CARRIES_NOTHING, reason)


def _names(name: str, path: str) -> bool:
    """True if a name in X-Ignored-Fields is that of the field, or of the object that has it."""
    plain = re.sub(r"\(\w+\)", "", path)
    tagged = re.sub(r"\[(\w+)\]$", r"[].\1", plain)  # a tool that is left out is named by its type
    forms = [re.sub(r"\[\w*\]", "[]", form) for form in (plain, tagged)]
    return any(form == name or form.startswith((name + ".", name + "[")) for form in forms)


def _leaf(fields: dict[str, Any], path: str) -> tuple[Any, Any]:
    """Return the object that has the field at this path, and its key there; the fields become a copy's."""
    place: tuple[Any, Any] = (fields, "")
    for step in re.findall(r"[\w]+|\[\w*\]|\(\w*\)", path):
        if step[0] == "[":
            items = list(place[0][place[1]])
            place[0][place[1]] = items
            place = (items, 0)
        elif step[0] != "(":
            if place[1] != "":
                inner = dict(place[0][place[1]])
                place[0][place[1]] = inner
                place = (inner, step)
            else:
                place = (fields, step)
    return place


def _complete(fields: dict[str, Any]) -> None:
    """Put in what a field's own type leaves open: the schema of a format, the tools that a choice names."""
    if isinstance(form := fields.get("response_format"), dict) and isinstance(form.get("json_schema"), dict):
        fields["response_format"] = {**form, "json_schema": {"schema": SCHEMA, **form["json_schema"]}}
    if isinstance(items := fields.get("input"), list):
        fields["input"] = [*items, {"role": "assistant", "content": "Hi"}, *HELLO]  # reasoning is part of a turn
    choice = fields.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        is_flat = "allowed_tools" not in choice
        allowed = {**(choice if is_flat else choice["allowed_tools"])}
        if "tools" in allowed:
            allowed["tools"] = [{"type": "function", "name": "x"} if is_flat else CHAT_TOOLS[0]]
        fields["tool_choice"] = allowed if is_flat else {**choice, "allowed_tools": allowed}


def table() -> Iterator[tuple[str, str, Fate]]:
    """Yield route, field and fate."""
    for route in FIELDS["requests"]:
        if reader(route) is not None:
            yield from ((route, path, found) for path, found in fates(route).items())
