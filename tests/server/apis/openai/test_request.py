"""The fields of OpenAI's routes: what changes nothing is accepted, what would be neglected is refused by name."""

import pytest
from tables import table

from splitfuse.server.settings import Settings

MODEL = "splitfuse-demo-5m"
MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]


async def test_fields_that_change_nothing_are_accepted(client):
    await client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=2,
        user="me",
        store=False,
        metadata={"a": "b"},
        service_tier="auto",
        parallel_tool_calls=True,
        reasoning_effort="low",
        seed=1,
        response_format={"type": "text"},
        tools=[],
        tool_choice="none",
        modalities=["text"],
        extra_body={"top_k": 3, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True, "min_tokens": 1},
    )
    await client.completions.create(
        model=MODEL,
        prompt="x",
        max_tokens=2,
        echo=False,
        best_of=2,
        n=2,
        suffix="",
        user="me",
        extra_body={"response_format": {"type": "text"}},
    )


TOOL = {"type": "function", "function": {"name": "f"}}
MANY_BYTES = {"type": "function", "function": {"name": "f", "parameters": {"enum": ["x" * 1_100_000]}}}
REFUSED = {
    "completions": table(__file__, "completions"),
    "chat/completions": [
        *table(__file__, "chat"),
        ("tools", {"tools": [TOOL] * 129}),
        ("tools", {"tools": [MANY_BYTES], "tool_choice": "required"}),
        ("chat_template_kwargs", {"chat_template_kwargs": {f"a{i}": 1 for i in range(65)}}),
    ],
}


@pytest.mark.parametrize("route", REFUSED)
async def test_refused_fields_are_named(served, route):
    base = {"prompt": "x"} if route == "completions" else {"messages": MESSAGES}
    for param, fields in REFUSED[route]:
        response = await served.client.post(f"/v1/{route}", json={"max_tokens": 2, **base, **fields})
        assert response.status_code == 400, (fields, response.text)
        error = response.json()["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", param), fields
    assert served.engine.num_submitted == 0


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [2**31, 0])
async def test_a_limit_is_refused_under_the_name_it_was_sent_with(served, name, value):
    response = await served.client.post("/v1/chat/completions", json={"messages": MESSAGES, name: value})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, name)
    assert error["message"].startswith(f"{name} must be")


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_limit_beyond_the_context_is_cut_and_said(served, is_stream):
    asked = {"messages": MESSAGES, "max_tokens": 5000, "stream": is_stream}
    response = await served.client.post("/v1/chat/completions", json=asked)
    num_prompt = len(served.engine.tokenizer.render_chat(MESSAGES))
    assert (response.status_code, response.headers["x-max-tokens"]) == (200, str(512 - num_prompt))
    response = await served.client.post("/v1/chat/completions", json=asked | {"max_tokens": 5})
    assert "x-max-tokens" not in response.headers


@pytest.mark.parametrize("settings", [Settings(strict_fields=True)])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_the_engines_refusal_names_the_limit_that_was_sent(served, name):
    served.engine.fits = 3
    response = await served.client.post("/v1/chat/completions", json={"messages": MESSAGES, name: 500})
    error = response.json()["error"]
    assert (error["param"], error["message"]) == (name, f"set {name} to 3 or less")
    assert error["code"] == "context_length_exceeded"


async def test_equal_limits_under_both_names(served):
    response = await served.client.post(
        "/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 3, "max_completion_tokens": 3}
    )
    assert response.json()["usage"]["completion_tokens"] == 3
