"""Calls of a model that embeds or ranks, and tokens, against the bodies and answers of the HTTP API."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import splitfuse
from splitfuse.client import AsyncClient, Client, Ranked
from splitfuse.engine import errors

ANSWERS: dict[str, Any] = {
    "/v1/embeddings": {"data": [{"index": 0, "embedding": [0.5, 1.0]}, {"index": 1, "embedding": [1.0, 0.0]}]},
    "/v1/rerank": {"results": [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1}]},
    "/tokenize": {"tokens": [5, 6], "count": 2, "max_model_len": 9},
}


@pytest.mark.parametrize(
    ("call", "body", "expected"),
    [
        (lambda client: client.embed(["a", "b"]), {"input": ["a", "b"]}, [[0.5, 1.0], [1.0, 0.0]]),
        (lambda client: client.embed("a", dimensions=2), {"input": ["a"], "dimensions": 2}, [[0.5, 1.0], [1.0, 0.0]]),
        (
            lambda client: client.rerank("q", ("a", "b")),
            {"query": "q", "documents": ["a", "b"]},
            [Ranked(1, 0.9), Ranked(0, 0.1)],
        ),
        (lambda client: client.tokenize("a"), {"prompt": "a"}, [5, 6]),
    ],
)
def test_both_clients(call: Callable[[Any], Any], body: dict[str, Any], expected: Any) -> None:
    bodies: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(200, json=ANSWERS[request.url.path])

    with Client("localhost:1", transport=httpx.MockTransport(answer)) as client:
        assert client.base_url == "http://localhost:1"
        assert call(client) == expected

    async def ask() -> Any:
        async with AsyncClient("localhost:1", transport=httpx.MockTransport(answer)) as client:
            return await call(client)

    assert asyncio.run(ask()) == expected
    assert bodies == [body, body]


def test_errors_are_one_tree() -> None:
    assert issubclass(splitfuse.APIError, splitfuse.SplitfuseError)
    assert issubclass(splitfuse.InvalidRequestError, splitfuse.SplitfuseError)
    assert splitfuse.SplitfuseError is errors.SplitfuseError
    for name in splitfuse.__all__:
        assert getattr(splitfuse, name) is not None
