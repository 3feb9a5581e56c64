"""Writes tests/server/sdk_fields.json: the fields of requests and answers in the newest `openai` and `anthropic`.

Run it where both packages are installed, and then tests/tools/compatibility_page.py:

    python -m venv sdk && sdk/bin/pip install openai anthropic && sdk/bin/python tests/tools/sdk_fields.py

A request's field has the value of the body's key with the least that the types require. Objects are walked:
`text.format` is a field too, and `tools[web_search]` is a tool of that type. Answers have paths without values.
"""

import json
import re
import types
import typing
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NotRequired, Required

from typing_extensions import is_typeddict

FILE = Path(__file__).parents[1] / "server/sdk_fields.json"
_CHAT, _RESPONSES = "openai.types.chat", "openai.types.responses"
_BETA = "anthropic.types.beta"
# Types of the body or the query, by route; the types of several versions of an API are joined.
REQUESTS = {
    "POST /v1/chat/completions": [f"{_CHAT}.completion_create_params:CompletionCreateParamsStreaming"],
    "POST /v1/completions": ["openai.types.completion_create_params:CompletionCreateParamsStreaming"],
    "POST /v1/responses": [f"{_RESPONSES}.response_create_params:ResponseCreateParamsStreaming"],
    "POST /v1/responses/input_tokens": [f"{_RESPONSES}.input_token_count_params:InputTokenCountParams"],
    "GET /v1/responses/{id}": [f"{_RESPONSES}.response_retrieve_params:ResponseRetrieveParamsStreaming"],
    "GET /v1/responses/{id}/input_items": [f"{_RESPONSES}.input_item_list_params:InputItemListParams"],
    "POST /v1/files": ["openai.types.file_create_params:FileCreateParams"],
    "GET /v1/files": ["openai.types.file_list_params:FileListParams"],
    "POST /v1/batches": ["openai.types.batch_create_params:BatchCreateParams"],
    "GET /v1/batches": ["openai.types.batch_list_params:BatchListParams"],
    "POST /v1/messages": [
        "anthropic.types.message_create_params:MessageCreateParamsStreaming",
        f"{_BETA}.message_create_params:MessageCreateParamsStreaming",
    ],
    "POST /v1/messages/count_tokens": [
        "anthropic.types.message_count_tokens_params:MessageCountTokensParams",
        f"{_BETA}.message_count_tokens_params:MessageCountTokensParams",
    ],
    "GET /v1/models": [f"{_BETA}.model_list_params:ModelListParams"],
}
ANSWERS = {
    "POST /v1/chat/completions": f"{_CHAT}:ChatCompletion",
    "POST /v1/chat/completions, a chunk": f"{_CHAT}:ChatCompletionChunk",
    "POST /v1/completions": "openai.types:Completion",
    "POST /v1/responses": f"{_RESPONSES}:Response",
    "POST /v1/responses/input_tokens": f"{_RESPONSES}:InputTokenCountResponse",
    "POST /v1/files": "openai.types:FileObject",
    "DELETE /v1/files/{id}": "openai.types:FileDeleted",
    "POST /v1/batches": "openai.types:Batch",
    "GET /v1/models/{name}": "openai.types:Model",
    "POST /v1/messages": "anthropic.types:Message",
    "POST /v1/messages/count_tokens": "anthropic.types:MessageTokensCount",
    "GET /v1/models/{name}, Anthropic's": "anthropic.types:ModelInfo",
}
HEADERS = frozenset({"betas", "user_profile_id", "workspace_id"})  # parameters that the SDK sends as headers
MAX_DEPTH = 3  # objects within objects
# Routes whose bodies hold the items of /v1/responses or the turns of /v1/messages: the fields inside are those.
SHALLOW = frozenset(REQUESTS) - {
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/responses",
    "POST /v1/messages",
}
# Variants of objects that concern a text model. Of all others the table has the variant, not the fields inside.
WALKED = frozenset(
    {
        *("", "function", "custom", "text", "message", "user", "assistant", "system", "developer", "tool", "grammar"),
        *("input_text", "output_text", "refusal", "function_call", "function_call_output", "reasoning", "json_schema"),
        *("reasoning_text", "json_object", "allowed_tools", "enabled", "adaptive", "disabled", "auto", "any", "none"),
        *("tool_use", "tool_result", "thinking", "document", "search_result", "custom_tool_call", "ephemeral"),
        *("compaction", "succeeded", "errored", "canceled", "expired", "image", "content"),
    }
)


def load(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


class Hint(typing.NamedTuple):
    """Type of a field, without the marks around it."""

    kind: Any
    alias: str | None = None  # name on the wire
    is_required: bool | None = None


def bare(kind: Any) -> Hint:
    """Take the marks off a type."""
    alias = is_required = None
    while (origin := typing.get_origin(kind)) in (typing.Annotated, Required, NotRequired):
        if origin is typing.Annotated:
            alias = next((found for item in kind.__metadata__ if (found := getattr(item, "alias", None))), alias)
        else:
            is_required = origin is Required
        kind = typing.get_args(kind)[0]
    return Hint(kind, alias, is_required)


def options(kind: Any) -> list[Any]:
    """Return the members of a union, without null."""
    kind = bare(kind).kind
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [option for member in typing.get_args(kind) for option in options(member)]
    return [] if kind is type(None) else [kind]


def is_list(kind: Any) -> bool:
    origin = typing.get_origin(kind)
    return origin is not None and origin not in (dict, typing.Literal) and hasattr(origin, "__iter__")


def keys_of(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return an object's fields by their names on the wire: the type, and whether it is required."""
    hints = typing.get_type_hints(kind, include_extras=True)
    found = {}
    for name, annotation in hints.items():
        hint = bare(annotation)
        if name not in HEADERS:
            found[hint.alias or name] = (hint.kind, kind.__total__ if hint.is_required is None else hint.is_required)
    return found


def sample(kind: Any, name: str = "") -> Any:
    """Return the least value of the type."""
    (kind, *_) = options(kind) or [None]
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return typing.get_args(kind)[0 if name in ("type", "role") else -1]  # defaults often come first
    if is_typeddict(kind):
        keys = keys_of(kind)
        least = {key: sample(inner, key) for key, (inner, needed) in keys.items() if needed}
        return least or {key: sample(inner, key) for key, (inner, _) in [*keys.items()][:1]}
    if origin is dict:
        return {"x": sample(typing.get_args(kind)[1])}
    if is_list(kind):
        return [sample(typing.get_args(kind)[0], name)]
    return {str: "x", int: 1, float: 0.5, bool: True, bytes: "x"}.get(kind, {})


def tag(kind: Any) -> str | None:
    """Return the text that tells an object from others of its union: its only type or role."""
    for key in ("type", "role"):
        inner, _ = keys_of(kind).get(key, (None, False))
        if typing.get_origin(inner) is typing.Literal:
            return str(typing.get_args(inner)[0])
    return None


def walk(kind: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the paths below an object, with a sample of the object that has the field."""
    least = {key: sample(inner, key) for key, (inner, needed) in keys_of(kind).items() if needed}
    for key, (inner, _) in keys_of(kind).items():
        yield key, {**least, key: sample(inner, key)}
        for option in options(inner):
            item = next(iter(options(typing.get_args(option)[0])), None) if is_list(option) else None
            members = options(typing.get_args(option)[0]) if item is not None else [option]
            dicts = [member for member in members if is_typeddict(member)]
            if depth >= MAX_DEPTH:
                continue
            for member in dicts:
                name = tag(member)
                place = f"{key}[{name or ''}]" if item is not None else f"{key}({name})" if name else key
                if item is not None and name is not None:
                    yield place, {**least, key: [sample(member)]}
                elif name is not None:
                    yield place, {**least, key: sample(member)}
                for path, value in walk(member, depth + 1) if (name or "") in WALKED else ():
                    if path not in ("type", "role") or name is None:
                        yield f"{place}.{path}", {**least, key: [value] if item is not None else value}


def answer_paths(kind: Any, depth: int = 0) -> Iterator[tuple[str, bool]]:
    """Yield the paths of an answer, and whether a field is required."""
    for name, item in kind.model_fields.items():
        path = item.alias or name
        yield path, item.is_required()
        for option in options(item.annotation):
            members = options(typing.get_args(option)[0]) if is_list(option) else [option]
            models = [member for member in members if hasattr(member, "model_fields")]
            if depth >= MAX_DEPTH:
                continue
            for member in models:
                label = model_tag(member)
                if label not in WALKED:
                    continue
                place = f"{path}[{label}]" if is_list(option) else f"{path}({label})" if label else path
                for inner, needed in answer_paths(member, depth + 1):
                    yield f"{place}.{inner}", needed


def model_tag(kind: Any) -> str:
    item = kind.model_fields.get("type")
    literal = None if item is None else bare(item.annotation).kind
    return str(typing.get_args(literal)[0]) if typing.get_origin(literal) is typing.Literal else ""


def request_fields(route: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for reference in REQUESTS[route]:
        for path, value in walk(load(reference), MAX_DEPTH if route in SHALLOW else 0):
            found.setdefault(path, value[re.split(r"[.\[(]", path)[0]])
    return dict(sorted(found.items()))


if __name__ == "__main__":
    fields = {
        "packages": {name: version(name) for name in ("openai", "anthropic")},
        "requests": {route: request_fields(route) for route in REQUESTS},
        "answers": {route: dict(sorted(answer_paths(load(reference)))) for route, reference in ANSWERS.items()},
    }
    FILE.write_text(json.dumps(fields, indent=0, sort_keys=True, separators=(",", ":")) + "\n", encoding="utf-8")
    print({route: len(found) for route, found in fields["requests"].items()})
    print({route: len(found) for route, found in fields["answers"].items()})
