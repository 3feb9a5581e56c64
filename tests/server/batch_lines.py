"""Batches of completions whose answers can be compared, driven by the openai package."""

import json
import time
from collections.abc import Sequence
from typing import Any

import openai
from serving import ServerProcess

ARGS = ("--dtype", "float32")  # makes runs comparable
OVER = ("completed", "failed", "expired", "cancelled")


def line(number: int) -> dict[str, Any]:
    """Return a request, which has an answer of its own."""
    prompts = ("Once upon a time", "The old man", "Tom had a ball. One day")
    body = {"prompt": prompts[number % 3], "max_tokens": 5 + number % 20, "temperature": 0.8, "seed": number}
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions", "body": body}


def contents(lines: Sequence[dict[str, Any]]) -> bytes:
    """Return the file of these requests."""
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in lines)


def client_of(server: ServerProcess) -> openai.OpenAI:
    """Return a client that waits for a server that starts."""
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=20, timeout=60)


def begin(client: openai.OpenAI, lines: Sequence[dict[str, Any]]) -> Any:
    """Create a batch of these requests and return it."""
    file = client.files.create(file=("lines.jsonl", contents(lines)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")


def ended(client: openai.OpenAI, batch_id: str, *, enough: int = 2**31) -> Any:
    """Return the batch when it is over, or has `enough` answers."""
    while True:
        batch = client.batches.retrieve(batch_id)
        assert batch.request_counts is not None
        if batch.status in OVER or batch.request_counts.completed >= enough:
            return batch
        time.sleep(0.02)  # a batch can only be polled


def lines_of(client: openai.OpenAI, file_id: str) -> list[Any]:
    """Return the lines of a file of answers."""
    return [json.loads(text) for text in client.files.content(file_id).text.splitlines()]


def texts(client: openai.OpenAI, batch: Any) -> list[tuple[str, str]]:
    """Return the answers, by their requests."""
    answers = lines_of(client, batch.output_file_id)
    return [(answer["custom_id"], answer["response"]["body"]["choices"][0]["text"]) for answer in answers]
