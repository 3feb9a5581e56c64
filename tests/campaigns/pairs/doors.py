"""Requests by other doors than POST /generate: each API's own form, tools, thoughts, batches, adapters, embeddings."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

_MESSAGES = [{"role": "user", "content": "Tell me about a little girl who finds a key."}]
_LENGTH = {"max_tokens": 40, "seed": 3, "temperature": 1.0}
_PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
_FUNCTION = {"name": "weather", "description": "Weather of a city.", "parameters": _PARAMETERS}
_TOOLS = {"tools": [{"type": "function", "function": _FUNCTION}], "tool_choice": "required"}
_CHAT = "/v1/chat/completions"
# Fields that differ from answer to answer.
_OWN = {
    "id", "created", "created_at", "completed_at", "seq_id", "call_id", "system_fingerprint", "timings", "item_id",
    "total_duration", "load_duration", "prompt_eval_duration", "eval_duration", "prompt_tokens_details",
    "input_tokens_details", "cache_read_input_tokens", "cache_creation_input_tokens", "cached_tokens", "request_id",
    "weights_version", "first_weights_version",
}  # fmt: skip


@dataclass(frozen=True)
class Door:
    """Request of an API. `needs`: values of a server's switches without which it is not sent."""

    path: str
    body: dict[str, Any]
    needs: Mapping[str, str] = field(default_factory=dict)

    def answer(self, client: httpx.Client) -> httpx.Response:
        """Send it and wait for its end."""
        if self.path == "/v1/batches":
            return self._batch(client)
        return client.post(self.path, json=self.body)

    def _batch(self, client: httpx.Client) -> httpx.Response:
        """Return the output file of a batch of this body."""
        line = {"custom_id": "a", "method": "POST", "url": _CHAT, "body": self.body}
        upload = client.post(
            "/v1/files", files={"file": ("a.jsonl", json.dumps(line) + "\n")}, data={"purpose": "batch"}
        )
        if upload.status_code >= 300:
            return upload
        batch = client.post(
            "/v1/batches",
            json={"input_file_id": upload.json()["id"], "endpoint": _CHAT, "completion_window": "24h"},
        )
        while batch.status_code < 300 and batch.json()["status"] in ("validating", "in_progress", "finalizing"):
            time.sleep(0.05)
            batch = client.get(f"/v1/batches/{batch.json()['id']}")
        if batch.status_code >= 300 or not batch.json().get("output_file_id"):
            return batch
        return client.get(f"/v1/files/{batch.json()['output_file_id']}/content")


DOORS = {
    "chat": Door(_CHAT, {"messages": _MESSAGES, "logprobs": True, "top_logprobs": 2, **_LENGTH}),
    "chat_stream": Door(_CHAT, {"messages": _MESSAGES, "stream": True, "n": 2, **_LENGTH}),
    "tools": Door(
        _CHAT,
        {
            "messages": _MESSAGES,
            **_TOOLS,
            "tool_choice": "required",
            "thinking_budget": 4,
            **_LENGTH,
            "max_tokens": 120,
        },
    ),
    "thoughts": Door(_CHAT, {"messages": _MESSAGES, "thinking_budget": 9, **_LENGTH}),
    "echo": Door("/v1/completions", {"prompt": "One day", "echo": True, "logprobs": 2, **_LENGTH}),
    "responses": Door("/v1/responses", {"input": "One day", "max_output_tokens": 30, "seed": 3}),
    "messages": Door("/v1/messages", {"model": "pairs", "messages": _MESSAGES, "max_tokens": 30, "temperature": 0}),
    "ollama": Door("/api/chat", {"messages": _MESSAGES, "options": {"num_predict": 30, "seed": 3}}),
    "completion": Door("/completion", {"prompt": "One day", "n_predict": 30, "seed": 3}),
    "batch": Door("/v1/batches", {"messages": _MESSAGES, **_LENGTH}),
    "adapter": Door("/v1/completions", {"model": "adapter", "prompt": "One day", **_LENGTH}, {"lora": "on"}),
    "embedding": Door("/v1/embeddings", {"input": ["One day", "She had a key."]}, {"pooler": "on"}),
}


def comparable(reply: httpx.Response) -> Any:
    """Return the parts of an answer that do not depend on time and server; of a stream, its texts by choice."""
    if reply.headers["content-type"].startswith("text/event-stream"):
        return _joined(reply.text)
    if reply.headers["content-type"].startswith("application/x-ndjson"):
        parts = [json.loads(line) for line in reply.text.splitlines()]
        said = [part.get("message") or {} for part in parts]
        texts = ["".join(message.get(name) or "" for message in said) for name in ("thinking", "content")]
        return [texts, parts[-1].get("done_reason"), parts[-1].get("error")]
    try:
        return _without_own(reply.json())
    except json.JSONDecodeError:  # a file of lines
        return [_without_own(json.loads(line)) for line in reply.text.splitlines()]


def _joined(text: str) -> Any:
    texts: dict[int, str] = {}
    ends: dict[int, Any] = {}
    for line in text.splitlines():
        data = line.removeprefix("data: ")
        if data == line or data == "[DONE]":
            continue
        event = json.loads(data)
        if "error" in event:
            return event
        for choice in event["choices"]:
            delta = choice["delta"]
            part = (delta.get("reasoning_content") or "") + (delta.get("content") or "")
            texts[choice["index"]] = texts.get(choice["index"], "") + part
            ends[choice["index"]] = choice["finish_reason"] or ends.get(choice["index"])
    return [[index, texts[index], ends[index]] for index in sorted(texts)]


def _without_own(value: Any) -> Any:
    if isinstance(value, dict):
        if "cache_read_input_tokens" in value:  # Anthropic's input_tokens are those that were not cached
            value = {**value, "input_tokens": value["input_tokens"] + value["cache_read_input_tokens"]}
        return {name: _without_own(item) for name, item in value.items() if name not in _OWN}
    return [_without_own(item) for item in value] if isinstance(value, list) else value
