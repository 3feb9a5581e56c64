"""Nasty bodies: what a schema of /openapi.json allows, as large as --max-body-bytes allows, a field at a time."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

SIZE = 2 * 2**20 - 2048  # bytes of a body, with space for the other fields
DEPTH = 60
PIECES = ("a", "é", "\n", '{"a":[', "</a>", "|-", "a.b-c/", "\x00", "1", "(a*)*", "<|im_end|>", "/a", "\ud800")

Schema = Mapping[str, Any]
Named = tuple[str, Callable[[], Any]]  # the second makes the value


class Document:
    """Operations of an OpenAPI document, with a nasty value for each field of a body."""

    def __init__(self, document: Schema) -> None:
        self._schemas = document["components"]["schemas"]
        self.posts: dict[str, Schema] = {}
        self.without_body: set[str] = set()
        for path, operations in document["paths"].items():
            if "requestBody" not in operations.get("post", {"requestBody": {}}):
                self.without_body.add(path)
            content = operations.get("post", {}).get("requestBody", {}).get("content", {})
            if "application/json" in content:
                self.posts[path] = content["application/json"]

    def bodies(self, path: str) -> Iterator[Named]:
        """Yield bodies of a route, each with its name."""
        body = self.posts[path]
        schema = self._resolved(body["schema"])
        fields = schema.get("properties", {})
        limit = _limit(fields)
        example = {**(body.get("example") or {}), **limit}
        for name in ("k{}", "client_metadata_{:07}", "x" * 100 + "{}"):
            yield f"many {name}", lambda name=name: {**example, **many_fields(name)}
        for field, of in fields.items():
            for kind, make in self._values(of, depth=3):
                yield f"{field}: {kind}", lambda field=field, make=make: _with(example, field, make())

    def _resolved(self, schema: Schema) -> Schema:
        while "$ref" in schema:
            schema = self._schemas[schema["$ref"].rpartition("/")[2]]
        return schema

    def _values(self, schema: Schema, *, depth: int) -> Iterator[Named]:
        """Yield large values that the schema allows, each with its kind."""
        schema = self._resolved(schema)
        if options := schema.get("anyOf", schema.get("oneOf")):
            for option in options:
                yield from self._values(option, depth=depth)
        elif "enum" not in schema and "const" not in schema:
            kinds = schema.get("type", ["string", "array", "object"])
            for kind in [kinds] if isinstance(kinds, str) else kinds:
                yield from getattr(self, f"_{kind}s", lambda *_: ())(schema, depth)

    def _strings(self, schema: Schema, depth: int) -> Iterator[Named]:
        for piece in PIECES:
            num = min(schema.get("maxLength", SIZE), SIZE) // len(json.dumps(piece)[1:-1])
            yield f"{piece!r} x {num}", lambda piece=piece, num=num: piece * num

    def _integers(self, schema: Schema, depth: int) -> Iterator[Named]:
        yield "most", lambda: schema.get("maximum", 10**18)

    _numbers = _integers

    def _arrays(self, schema: Schema, depth: int) -> Iterator[Named]:
        items = schema.get("items", {})
        yield "nested lists", lambda: _deep(list)
        for item in self._small(items):
            num = min(schema.get("maxItems", SIZE), SIZE // (len(json.dumps(item)) + 1))
            yield f"{num} x {json.dumps(item)[:60]}", lambda item=item, num=num: [item] * num
        if depth:
            for kind, make in self._values(items, depth=depth - 1):
                yield f"[{kind}]", lambda make=make: [make()]

    def _objects(self, schema: Schema, depth: int) -> Iterator[Named]:
        if schema.get("additionalProperties", True) is not False:
            yield "nested objects", lambda: _deep(dict)
            for name in ("k{}", "x" * 100 + "{}", "{}"):
                yield f"many {name[:8]}", lambda name=name: many_fields(name)
        small = next(iter(self._small(schema)), {})
        for name, of in schema.get("properties", {}).items() if depth else ():
            for kind, make in self._values(of, depth=depth - 1):
                yield f"{name}: {kind}", lambda name=name, make=make: {**small, name: make()}

    def _small(self, schema: Schema, depth: int = 4) -> Iterator[Any]:
        """Yield small values of the schema."""
        schema = self._resolved(schema)
        if "const" in schema or "enum" in schema:
            yield from schema.get("enum", [schema.get("const")])[:1]
            return
        if options := schema.get("anyOf", schema.get("oneOf")):
            for option in options:
                yield from self._small(option, depth)
            return
        kinds = schema.get("type", ["string", "array", "object", "integer"])
        for kind in [kinds] if isinstance(kinds, str) else kinds:
            if kind in _SMALL:
                yield _SMALL[kind]
            elif kind == "array":
                yield [next(self._small(schema.get("items", {}), depth - 1), 1)] if depth else []
            elif kind == "object":
                wanted = schema.get("required", ())
                properties = schema.get("properties", {})
                yield {name: next(self._small(properties.get(name, {}), depth - 1), "a") for name in wanted if depth}


def _limit(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a limit of tokens: a body that is taken is answered to the end, which may be the context's."""
    name = next((name for name in ("max_output_tokens", "n_predict", "max_tokens") if name in fields), None)
    return {name: 8} if name else {"options": {"num_predict": 8}} if "options" in fields else {}


def _with(example: Mapping[str, Any], field: str, value: Any) -> dict[str, Any]:
    """Replace a field; an object keeps the limit in it."""
    is_object = isinstance(value, dict) and isinstance(example.get(field), dict)
    return {**example, field: {**example[field], **value} if is_object else value}


_SMALL = {"string": "a", "integer": 5, "number": 0.5, "boolean": True}


def many_fields(name: str) -> dict[str, Any]:
    """Return as many fields as fit a body."""
    return {name.format(number): 1 for number in range(SIZE // (len(name.format(10**5)) + 6))}


def _deep(kind: type) -> Any:
    value: Any = kind()
    for _ in range(DEPTH - 4):
        value = [value] if kind is list else {"a": value}
    return value


def long_answers(path: str, *, n: int) -> Iterator[Named]:
    """Yield bodies whose answers are as long as fields allow, whole and as streams."""
    sampling = {"ignore_eos": True, "temperature": 2.0, "prompt_logprobs": 20, "n": n, "max_tokens": 400}
    fields = {
        "/generate": {"prompt": [5] * 100, **sampling, "logprobs": 20},
        "/v1/completions": {"prompt": [5] * 100, **sampling, "logprobs": 20, "echo": True},
        "/v1/chat/completions": {**_HELLO, **sampling, "logprobs": True, "top_logprobs": 20},
        "/v1/responses": {"input": "a", "max_output_tokens": 400, "top_logprobs": 20, "ignore_eos": True, **_LOGPROBS},
    }[path]
    for streams in (False, True):
        yield f"long, stream {streams}", lambda streams=streams: {**fields, "stream": streams}


_HELLO = {"messages": [{"role": "user", "content": "a"}]}
_LOGPROBS = {"include": ["message.output_text.logprobs"]}
