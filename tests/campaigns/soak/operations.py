"""Operations of clients in a soak: requests of every kind, read to the end or left half-way, at random from a seed."""

import random
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from random_schemas import random_schema

Operation = Callable[[httpx.AsyncClient, random.Random], Awaitable[None]]

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
WORDS = ("once", "upon", "a", "time", "an", "old", "dog", "who", "lived", "by", "the", "sea", "knew", "every", "fish")


def some_prompt(rng: random.Random) -> str:
    """Return a prompt with one of a few beginnings, for hits of the prefix cache, and a random end."""
    beginning = " ".join(random.Random(rng.randrange(6)).choices(WORDS, k=60))
    return beginning + " " + " ".join(rng.choices(WORDS, k=rng.randint(1, 60)))


def some_fields(rng: random.Random) -> dict[str, Any]:
    """Return random sampling fields of every kind."""
    fields: dict[str, Any] = {"max_tokens": rng.randint(1, 80), "user": f"tenant-{rng.randrange(5)}"}
    choices: list[dict[str, Any]] = [
        {"temperature": 0}, {"seed": rng.randrange(100), "top_p": 0.9}, {"n": rng.randint(2, 4)},
        {"logprobs": rng.randint(0, 20)}, {"prompt_logprobs": 3}, {"stop": ["dog", "."]}, {"bad_words": ["the"]},
        {"repetition_penalty": 1.3, "min_tokens": 1}, {"timeout_ms": rng.randint(1, 500)},
        {"priority": rng.randint(-2, 2)},
        {"structured_outputs": {"json": random_schema(rng)}}, {"structured_outputs": {"regex": "[a-z]{3,9}( [a-z]+)*"}},
        {"ignore_eos": True},
    ]  # fmt: skip
    for choice in rng.sample(choices, rng.randint(0, 3)):
        fields |= choice
    return fields


async def read_stream(client: httpx.AsyncClient, rng: random.Random) -> None:
    """Send POST /generate, and read all events or only the first few."""
    body = {"prompt": some_prompt(rng), **some_fields(rng), "stream": True}
    num_left = rng.choice([None, None, 0, 1, rng.randint(2, 30)])
    async with client.stream("POST", "/generate", json=body) as response:
        if num_left == 0:
            return
        async for line in response.aiter_lines():
            if num_left is not None and line.startswith("data:"):
                num_left -= 1
                if not num_left:
                    return


async def submit_and_poll(client: httpx.AsyncClient, rng: random.Random) -> None:
    """Send POST /generate and poll the result; sometimes delete it while it runs, or never poll."""
    response = await client.post("/generate", json={"prompt": some_prompt(rng), **some_fields(rng)})
    if response.status_code != 202:
        expect(response, 400, 429)
        return
    url = response.json()["result_url"]
    end = rng.random()
    if end < 0.3:
        expect(await client.delete(url), 200)
    elif end < 0.8:
        expect(await client.get(url, params={"wait": 60}), 200)


async def complete(client: httpx.AsyncClient, rng: random.Random) -> None:
    """Send POST /v1/completions with several prompts."""
    fields = {name: value for name, value in some_fields(rng).items() if name not in ("logprobs", "prompt_logprobs")}
    body = {"prompt": [some_prompt(rng) for _ in range(rng.randint(1, 3))], **fields, "logprobs": rng.choice([None, 3])}
    expect(await client.post("/v1/completions", json=body), 200, 400, 429)


async def chat(client: httpx.AsyncClient, rng: random.Random) -> None:
    """Send POST /v1/chat/completions with tools."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": some_prompt(rng)}],
        "max_tokens": rng.randint(5, 60),
    }
    if rng.random() < 0.6:
        body |= {"tools": [TOOL], "tool_choice": rng.choice(["auto", "required"]), "seed": rng.randrange(9)}
    expect(await client.post("/v1/chat/completions", json={**body, "stream": rng.random() < 0.5}), 200, 429)


async def respond(client: httpx.AsyncClient, rng: random.Random) -> None:
    """Send POST /v1/responses, and perhaps another turn."""
    body = {"input": some_prompt(rng), "max_output_tokens": rng.randint(16, 40)}
    response = await client.post("/v1/responses", json=body)
    expect(response, 200, 429)
    if response.status_code == 200 and rng.random() < 0.5:
        more = {"input": "and then?", "max_output_tokens": 16, "previous_response_id": response.json()["id"]}
        expect(await client.post("/v1/responses", json=more), 200, 400, 404, 429)


async def vanish(client: httpx.AsyncClient, rng: random.Random) -> None:
    """Run another operation, and disconnect at a random moment."""
    other = rng.choice([read_stream, submit_and_poll, complete, chat, respond])
    try:
        client.timeout = httpx.Timeout(rng.choice([0.005, 0.05, 0.5]))
        await other(client, rng)
    except httpx.TimeoutException:
        pass
    finally:
        client.timeout = httpx.Timeout(120.0)


async def misuse(client: httpx.AsyncClient, rng: random.Random) -> None:
    """Send a request that must be refused."""
    body: dict[str, Any] = rng.choice([{"prompt": ""}, {"prompt": "x", "top_q": 1}, {"prompt": "x " * 5000}, {}])
    expect(await client.post("/generate", json=body), 400)
    expect(await client.get("/result/unknown"), 404)


OPERATIONS: tuple[tuple[Operation, int], ...] = (
    (read_stream, 5), (submit_and_poll, 4), (complete, 2), (chat, 2), (respond, 2), (vanish, 4), (misuse, 1),
)  # fmt: skip


def expect(response: httpx.Response, *statuses: int) -> None:
    """Raise AssertionError for another answer, or for a failure inside an answer."""
    assert response.status_code in statuses, f"{response.request.url}: {response.status_code} {response.text[:500]}"
    assert '"server_error"' not in response.text, response.text[-500:]
