"""ResponseMiddleware: requests that the server cancels at its end."""

import asyncio
import json

from starlette.types import Message, Receive, Scope, Send

from splitfuse.server.http.response_middleware import ResponseMiddleware


async def test_a_cancelled_request_is_a_503() -> None:
    """uvicorn cancels what still runs when its time is over, and would answer 500 itself."""
    is_running = asyncio.Event()
    messages: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_running.set()
        await asyncio.Event().wait()

    async def send(message: Message) -> None:
        messages.append(message)

    async def receive() -> Message:
        raise AssertionError

    scope = {"type": "http", "path": "/v1/embeddings", "headers": []}
    task = asyncio.create_task(ResponseMiddleware(app, lambda path: None)(scope, receive, send))
    await is_running.wait()
    task.cancel()
    await task
    start, body = messages
    assert start["status"] == 503
    assert b"retry-after" in dict(start["headers"])
    assert json.loads(body["body"])["error"]["code"] == "cancelled"
