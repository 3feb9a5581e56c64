"""A server in 90 lines: FastAPI around the engine of tiny_engine.py. Results by id, and tokens over SSE.

    uvicorn --app-dir client/examples tiny_server:app
    curl localhost:8000/generate -d '{"prompt": "Once upon a time"}' -H 'Content-Type: application/json'

The real server (server/app.py) adds limits, errors, authentication, kept results and the other APIs.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from tiny_engine import Engine  # type: ignore[import-not-found]  # beside this file

from splitfuse.engine.core.request import Request
from splitfuse.engine.core.sampling_params import SamplingParams


class Body(BaseModel):
    """Body of POST /generate."""

    prompt: str
    max_tokens: int = 32
    temperature: float = 1.0
    seed: int | None = None


engine = Engine()
requests: dict[str, Request] = {}
stepped = asyncio.Condition()


async def run() -> None:
    """Step while there is work. A step runs in a thread, so the event loop stays free for HTTP."""
    while True:
        async with stepped:  # also held while a prompt is added: the scheduler belongs to one thread at a time
            await stepped.wait_for(lambda: engine.scheduler.has_work)
            await asyncio.to_thread(engine.step)
            stepped.notify_all()


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    task = asyncio.create_task(run())
    yield
    task.cancel()


app = FastAPI(title="tiny splitfuse", lifespan=lifespan)


@app.post("/generate", status_code=202)
async def generate(body: Body) -> dict[str, str]:
    """Queue a prompt. Returns the id of its result."""
    params = SamplingParams(max_tokens=body.max_tokens, temperature=body.temperature, seed=body.seed)
    async with stepped:
        request = engine.add(body.prompt, params)
        stepped.notify_all()
    requests[request.request_id] = request
    return {"seq_id": request.request_id}


def find(seq_id: str) -> Request:
    if seq_id not in requests:
        raise HTTPException(404, f"there is no result {seq_id}")
    return requests[seq_id]


@app.get("/result/{seq_id}")
async def result(seq_id: str) -> dict[str, str | None]:
    """Text so far, and why it ended."""
    request = find(seq_id)
    return {"text": engine.text(request), "finish_reason": request.finish_reason}


@app.get("/result/{seq_id}/stream")
async def stream(seq_id: str) -> StreamingResponse:
    """Events with the whole text so far, after each step that added to it."""
    request = find(seq_id)

    async def events() -> AsyncIterator[str]:
        num_sent = -1
        while num_sent < 0 or not request.is_finished:
            async with stepped:
                while request.num_output_tokens <= num_sent and not request.is_finished:
                    await stepped.wait()
            num_sent = request.num_output_tokens
            yield f"data: {json.dumps({'text': engine.text(request), 'finish_reason': request.finish_reason})}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")
