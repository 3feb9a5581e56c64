"""Fields that answers of a server with a fake engine have, by route, in the spelling of sdk_fields.json.

`choices[].message` is a field within a list, `output[message]` one within an object of that type in a list.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
from fake_engine import FakeEngine
from serving import parse_events, ready_client

from splitfuse.engine.language.chat.template import ChatTemplate
from splitfuse.server.app import build_app
from splitfuse.server.settings import Settings

HELLO = [{"role": "user", "content": "Hello"}]
TEMPLATE = """{% for t in tools or [] %}{{ t | tojson }}<tool_call>{% endfor %}{% for m in messages %}<{{ m.role }}>
{{- m.content }}{% endfor %}{{ '<think>' if reasoning_effort == 'high' or enable_thinking }}"""
CALL = '<tool_call>{"name": "f", "arguments": {"a": "b"}}'
SCRIPT = ["<think>", "Hm", "</think>", "Let me look.\n", CALL, "</tool_call>"]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FUNCTION = {"name": "f", "parameters": SCHEMA}
ANTHROPIC = {"anthropic-version": "2023-06-01"}


def paths(value: Any, before: str = "") -> Iterator[str]:
    """Yield the paths of all fields of an answer, with and without the types of objects."""
    for name, inner in value.items() if isinstance(value, dict) else ():
        path = before + name
        yield path
        for place, item in _objects(inner, path):
            yield from paths(item, place + ".")


def _objects(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict):
            kind = item.get("type")
            plain, tagged = ("[]", f"[{kind}]") if isinstance(value, list) else ("", f"({kind})")
            yield path + plain, item
            if isinstance(kind, str):
                yield path + tagged, item


async def collected() -> dict[str, set[str]]:
    """Return the paths in answers, by route."""
    engine = FakeEngine()
    app = build_app(Settings(), engine)  # type: ignore[arg-type]
    found: dict[str, set[str]] = {}
    async with ready_client(app) as client:
        engine.tokenizer.chat_template = ChatTemplate(TEMPLATE, special_tokens={})
        async for route, answer in _answers(client, engine):
            found.setdefault(route, set()).update(paths(answer))
    return found


async def _answers(client: httpx.AsyncClient, engine: FakeEngine) -> AsyncIterator[tuple[str, Any]]:
    async def sent(method: str, path: str, body: Any = None, **more: Any) -> Any:
        answer = await client.request(method, path, json=body, **more)
        assert answer.status_code == 200, (path, answer.text)
        return answer.json()

    chat = {"messages": HELLO, "logprobs": True, "top_logprobs": 1}
    tools = [{"type": "function", "function": FUNCTION}]
    for script, fields in ((None, {"max_tokens": 3}), (SCRIPT, {"tools": tools}), (SCRIPT, {"functions": [FUNCTION]})):
        engine.script = script
        yield "POST /v1/chat/completions", await sent("POST", "/v1/chat/completions", {**chat, **fields})
        streamed = {**chat, **fields, "stream": True, "stream_options": {"include_usage": True}}
        text = (await client.post("/v1/chat/completions", json=streamed)).text
        for event in parse_events(text)[:-1]:
            yield "POST /v1/chat/completions, a chunk", event["data"]
    flat = [{"type": "function", **FUNCTION}]
    include = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    response: Any = {}
    for script, fields in (
        (None, {"max_output_tokens": 3}),
        (SCRIPT, {"tools": flat, "reasoning": {"effort": "high"}}),
    ):
        engine.script = script
        response = await sent("POST", "/v1/responses", {"input": "Hello", "metadata": {"a": "b"}, **include, **fields})
        yield "POST /v1/responses", response
        message = {"messages": HELLO, "max_tokens": 9, "thinking": {"type": "enabled"}}
        message_tools = {"tools": [{"name": "f", "input_schema": SCHEMA}]} if script else {}
        yield "POST /v1/messages", await sent("POST", "/v1/messages", {**message, **message_tools})
    engine.script = None
    yield "POST /v1/completions", await sent("POST", "/v1/completions", {"prompt": "Hello", "logprobs": 1})
    yield "POST /v1/responses/input_tokens", await sent("POST", "/v1/responses/input_tokens", {"input": "Hello"})
    yield "POST /v1/messages/count_tokens", await sent("POST", "/v1/messages/count_tokens", {"messages": HELLO})
    (model,) = (await sent("GET", "/v1/models"))["data"]
    yield "GET /v1/models/{name}", await sent("GET", f"/v1/models/{model['id']}")
    yield "GET /v1/models/{name}, Anthropic's", await sent("GET", f"/v1/models/{model['id']}", headers=ANTHROPIC)
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hello", "max_tokens": 2}}
    upload = {"files": {"file": ("a.jsonl", json.dumps(line))}, "data": {"purpose": "batch"}}
    file = (await client.post("/v1/files", **upload)).json()
    yield "POST /v1/files", file
    fields = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = await sent("POST", "/v1/batches", fields)
    while batch["status"] != "completed":
        await asyncio.sleep(0.01)
        batch = await sent("GET", f"/v1/batches/{batch['id']}")
    yield "POST /v1/batches", batch
    failed = await sent("POST", "/v1/batches", fields | {"endpoint": "/generate"})
    while failed["status"] != "failed":
        await asyncio.sleep(0.01)
        failed = await sent("GET", f"/v1/batches/{failed['id']}")
    yield "POST /v1/batches", failed
    yield "DELETE /v1/files/{id}", await sent("DELETE", f"/v1/files/{file['id']}")
