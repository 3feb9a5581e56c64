"""A crowd over real sockets: 200 requests, 64 at a time. A fifth of the clients vanish; the others notice nothing."""

import asyncio
import random

from serving import ready_client, stream_events
from tiny_models import save_model

from splitfuse.engine import LLM, SamplingParams
from splitfuse.server.app import build_app
from splitfuse.server.settings import Settings

NUM_REQUESTS = 200
AT_A_TIME = 64


async def test_a_crowd_of_which_a_fifth_vanishes(tmp_path):
    save_model("llama-gqa-tied", tmp_path)
    rng = random.Random(11)
    bodies = [
        {
            "prompt": [rng.randrange(20, 270) for _ in range(rng.randint(1, 80))],
            "max_tokens": rng.randint(1, 40),
            "temperature": 0,
            "ignore_eos": True,
        }
        for _ in range(NUM_REQUESTS)
    ]
    llm = LLM(str(tmp_path), dtype="float32")
    params = [SamplingParams(temperature=0, ignore_eos=True, max_tokens=body["max_tokens"]) for body in bodies]
    expected = [out.outputs[0].token_ids for out in llm.generate([body["prompt"] for body in bodies], params)]
    vanishing = set(rng.sample(range(NUM_REQUESTS), NUM_REQUESTS // 5))
    settings = Settings(
        model=str(tmp_path), dtype="float32", block_size=4, num_kv_blocks=80, max_num_seqs=16, max_num_batched_tokens=64
    )
    app = build_app(settings)
    gate = asyncio.Semaphore(AT_A_TIME)

    async with ready_client(app) as client:
        engine = app.state.service.engine
        tasks_before = asyncio.all_tasks()

        async def one(index):
            async with gate:
                return await (vanish if index in vanishing else ROUTES[index % len(ROUTES)])(client, bodies[index])

        async def vanish(client, body):
            """Disconnect somewhere in the stream, or before its first event."""
            after = rng.randint(0, body["max_tokens"])
            async with client.stream("POST", "/generate", json={**body, "stream": True}) as response:
                async for _ in stream_events(response):
                    after -= 1
                    if after < 0:
                        break

        results = await asyncio.gather(*map(one, range(NUM_REQUESTS)))
        await engine.drain(120)
        stats = engine.stats()
        assert stats["num_free_blocks"] == stats["num_blocks"] == 80
        assert stats["num_preemptions"] > 0, "the pool is meant to be too small"
        # Connections that were dropped end their tasks in their own time; the engine's stays.
        left = asyncio.all_tasks() - tasks_before
        if left:
            await asyncio.wait(left, timeout=60)
        assert asyncio.all_tasks() <= tasks_before
    for index, result in enumerate(results):
        if index not in vanishing:
            assert result == expected[index]


async def streamed(client, body):
    token_ids = []
    async with client.stream("POST", "/generate", json={**body, "stream": True}) as response:
        assert response.status_code == 200
        async for event in stream_events(response):
            token_ids += event["data"]["token_ids"] if event["event"] == "token" else []
    return token_ids


async def polled(client, body):
    submitted = (await client.post("/generate", json=body)).json()
    return (await client.get(submitted["result_url"], params={"wait": 60})).json()["token_ids"]


async def attached(client, body):
    submitted = (await client.post("/generate", json=body)).json()
    async with client.stream("GET", submitted["stream_url"]) as response:
        events = [event async for event in stream_events(response)]
    return events[-1]["data"]["token_ids"]


ROUTES = (streamed, polled, attached)
