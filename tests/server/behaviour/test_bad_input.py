"""Every kind of bad input on each of the three POST routes of the real server, with a victim's stream beside it.

Always 400, 404 or 413 in the envelope, never 422 or 500, and the victim's tokens stay what they are without it.
"""

import asyncio
import json
import os

import httpx
import pytest
from serving import ServerProcess, parse_events
from tables import table

BASE = {
    "/generate": {"prompt": "Once upon a time", "max_tokens": 2},
    "/v1/completions": {"prompt": "Once upon a time", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 2},
}
# Without SPLITFUSE_TEST_ALL=1 each route takes its own quarter of the bodies.
EVERY = 1 if "SPLITFUSE_TEST_ALL" in os.environ else len(BASE)
PROMPT_ROUTES = ["/generate", "/v1/completions"]
VOCAB_SIZE = 4096
VICTIM = {"prompt": "Long ago", "max_tokens": 480, "temperature": 0.8, "seed": 3, "ignore_eos": True, "stream": True}

INTS = table(__file__, "integers")
FLOATS = ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]
BOOLS = ["stream", "include_stop_str_in_output", "ignore_eos", "skip_special_tokens"]
STRINGS = ["stop", "bad_words"]
IDS = ["stop_token_ids", "allowed_token_ids"]
ZERO_IS_FINE = {"min_tokens", "top_k", "seed", "logprobs", "prompt_logprobs", "priority"}
NEGATIVE_IS_FINE = {"seed", "priority", "top_k"}
NOT_FINITE = ["NaN", "Infinity", "-Infinity", "1e400", "-1e400"]
WRONG_TYPES = ["true", '"5"', "[1]", "{}"]


def cases():
    """Return pairs of a name and a JSON text for a field."""
    for name in INTS:
        values = ["1.5", "1e3", "1" + "0" * 30, "-1" + "0" * 30, "1" * 5000, *NOT_FINITE, *WRONG_TYPES]
        values += [] if name in NEGATIVE_IS_FINE else ["-1"]
        values += [] if name in ZERO_IS_FINE else ["0"]
        yield from ((name, value) for value in values)
    for name in FLOATS:
        yield from ((name, value) for value in [*NOT_FINITE, *WRONG_TYPES, "-3", "101", "1" + "0" * 40])
    for name in BOOLS:
        yield from ((name, value) for value in ["0", "1", '"true"', "[]"])
    for name in STRINGS:
        too_many = json.dumps(["x"] * 257)
        values = ["5", "true", "{}", "[1]", '["x", null]', '""', '[""]', json.dumps("x" * 257), too_many, '"\\ud800"']
        yield from ((name, value) for value in values)
    for name in IDS:
        values = ["5", '"5"', "[true]", '["5"]', "[1.0]", "[-1]", f"[{VOCAB_SIZE}]", f"[{2**63}]", f"[1{'0' * 30}]"]
        yield from ((name, value) for value in values)
    yield "stop_token_ids", json.dumps(list(range(257)))
    yield "allowed_token_ids", "[]"
    for value in [*NOT_FINITE, "101", "-101", "true", '"1"', "null"]:
        yield "logit_bias", f'{{"5": {value}}}'
    for key in ["-1", str(VOCAB_SIZE), "9" * 30, "x", "", "1.0", "٣", " 5"]:
        yield "logit_bias", json.dumps({key: 1})
    yield "logit_bias", json.dumps({str(key): 1 for key in range(1025)})
    yield "logit_bias", "[[1, 2]]"
    yield "n", "65"
    yield "logprobs", "21"
    yield "top_k", "-2"
    yield "prompt_logprobs", "21"
    yield "min_tokens", "3"  # more than max_tokens
    yield "max_tokens", "3000000000"
    yield "max_length", "1"
    yield "no_such_limit", "1"
    yield "prompt_embeds", "[[0.5]]"
    yield "default_max_tokens", "5"
    yield "request_id", '"two\\nlines"'
    yield "model", '["splitfuse-demo-5m"]'


PROMPTS = [
    *('""', "[]", "null", "5", "true", "{}", '{"a": 1}', '["x", 1]', "[1.5]", "[true]", "[null]", "[[[1]]]", "[{}]"),
    *("[-1]", f"[{VOCAB_SIZE}]", f"[{2**63}]", "[1" + "0" * 30 + "]", '"\\ud800"', '"x\\udc00y"', "NaN"),
    json.dumps("word " * 600),
    json.dumps([5] * 600),
]
BODIES = [
    *(b"", b"{", b"[]", b"null", b'"x"', b"5", b"\xff\xfe", b'{"prompt": "x"} x', b'{"prompt": "\xff"}'),
    b'{"\\ud800": 1}',
    b'{"prompt": "x", "prompt": "y"}',
    b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"prompt": "x", "max_tokens": ' + b"9" * 5000 + b"}",
    b'{"' + b"k" * 10_000 + b'": 1}',
]


def bodies(route):
    """Yield every bad body for a route, as bytes."""
    base = BASE[route]
    for name, value in cases():
        if name == "logprobs" and route == "/v1/chat/completions":
            value = value if value not in ("true",) else '"true"'
        fields = {key: json.dumps(item) for key, item in base.items()} | {name: value}
        yield ("{" + ", ".join(f"{json.dumps(key)}: {text}" for key, text in fields.items()) + "}").encode()
    if route in PROMPT_ROUTES:
        for prompt in PROMPTS:
            yield b'{"max_tokens": 2, "prompt": ' + prompt.encode() + b"}"
    elif route == "/v1/responses":
        for content in ("5", "null", "[]", '"\\ud800"', "[5]", '[{"role": "user"}]', json.dumps("word " * 600)):
            yield b'{"max_output_tokens": 2, "input": ' + content.encode() + b"}"
    else:
        for content in ("5", "null", "[]", '"\\ud800"', json.dumps("word " * 600)):
            yield b'{"max_tokens": 2, "messages": [{"role": "user", "content": ' + content.encode() + b"}]}"
    yield json.dumps({**base, "model": "another"}).encode()
    yield from BODIES


async def victim(live):
    """Return the token ids of an innocent stream."""
    response = await live.post("/generate", json=VICTIM)
    events = parse_events(response.text)
    assert events[-1]["event"] == "done"
    return events[-1]["data"]["token_ids"]


def check(body, response):
    shown = body[:200]
    assert response.status_code in (400, 404, 413), (shown, response.status_code, response.text)
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert len(error["message"]) < 600, shown
    for leak in ("Traceback", "0x", "/server/", "/engine/", "object at"):
        assert leak not in error["message"], (shown, error)


@pytest.mark.parametrize("route", BASE)
async def test_bad_input_is_refused_and_hurts_no_other(live, route):
    expected = await victim(live)
    beside = asyncio.create_task(victim(live))
    limit = asyncio.Semaphore(4)

    async def send(body):
        async with limit:
            check(body, await live.post(route, content=body))

    first = [*BASE].index(route) % EVERY
    await asyncio.gather(*map(send, [*bodies(route)][first::EVERY]))
    assert await beside == expected
    stats = (await live.get("/stats")).json()
    assert (stats["num_running"], stats["num_waiting"], stats["num_used_blocks"]) == (0, 0, 0)


@pytest.mark.thorough
def test_no_assert_refuses_input():
    """`python -O` leaves asserts out; the same bodies are refused, and the server goes on."""
    optimized = ServerProcess("--max-model-len", "512", env={"PYTHONOPTIMIZE": "1"})
    with optimized as server, httpx.Client(base_url=server.url, timeout=60) as client:
        for route in BASE:
            for body in list(bodies(route))[::7]:
                check(body, client.post(route, content=body))
        answer = client.post("/generate", json={**VICTIM, "max_tokens": 5})
        assert parse_events(answer.text)[-1]["event"] == "done"


@pytest.mark.parametrize("route", BASE)
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_two_mebibytes(live, route, is_chunked):
    body = json.dumps({**BASE[route], "user": "x" * 2**21}).encode()

    async def parts():
        for start in range(0, len(body), 2**16):
            yield body[start : start + 2**16]

    response = await live.post(route, content=parts() if is_chunked else body)
    check(body, response)
    assert response.status_code == 413


async def test_the_reason_is_named(live):
    for fields, param, code in [
        ({"temperature": -1}, "temperature", None),
        ({"prompt": []}, "prompt", None),
        ({"prompt": ""}, "prompt", None),
        ({"prompt": "word " * 600}, "prompt", "context_length_exceeded"),
        ({"max_tokens": 10_000}, "max_tokens", "context_length_exceeded"),
        ({"prompt": [4096]}, "prompt", None),
        ({"stop_token_ids": [4096]}, "stop_token_ids", None),
        ({"logit_bias": {"4096": 1}}, "logit_bias", None),
        ({"top_q": 1}, "top_q", None),
    ]:
        response = await live.post("/generate", json={**BASE["/generate"], **fields})
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["code"]) == (400, param, code), fields


async def test_odd_but_fine(live):
    """Values that look odd but are right must not be refused."""
    for fields in table(__file__, "odd"):
        response = await live.post("/generate", json={**BASE["/generate"], **fields})
        assert response.status_code == 202, (fields, response.text)
        result = (await live.get(response.json()["result_url"] + "?wait=60")).json()
        assert result["status"] == "completed", (fields, result)
