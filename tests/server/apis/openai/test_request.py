"""The fields of OpenAI's routes: what changes nothing is accepted, what would be neglected is refused by name."""

from itertools import product

import pytest
from tables import table

from splitfuse.server.settings import Settings

MODEL = "splitfuse-demo-5m"
MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]


async def test_fields_that_change_nothing_are_accepted(client):
    both, text = {"model": MODEL, "max_tokens": 2, "user": "me"}, {"type": "text"}
    extra = {"top_k": 3, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True, "min_tokens": 1}
    fields = {"store": False, "metadata": {"a": "b"}, "service_tier": "auto", "parallel_tool_calls": True, "tools": []}
    fields |= {"reasoning_effort": "low", "seed": 1, "response_format": text, "tool_choice": "none"}
    chat = client.chat.completions.create
    await chat(**both, **fields, messages=MESSAGES, modalities=["text"], extra_body=extra)
    fields = {"echo": False, "best_of": 2, "n": 2, "suffix": "", "extra_body": {"response_format": text}}
    await client.completions.create(**both, **fields, prompt="x")


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


LIMITS = ("max_tokens", "max_completion_tokens")


async def test_a_limit_is_refused_under_the_name_it_was_sent_with(served):
    for name, value in product(LIMITS, (2**31, 0)):
        response = await served.client.post("/v1/chat/completions", json={"messages": MESSAGES, name: value})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, name)
        assert error["message"].startswith(f"{name} must be")


async def test_a_limit_beyond_the_context_is_cut_and_said(served):
    num_prompt = len(served.engine.tokenizer.render_chat(MESSAGES))
    for is_stream in (False, True):
        asked = {"messages": MESSAGES, "max_tokens": 5000, "stream": is_stream}
        response = await served.client.post("/v1/chat/completions", json=asked)
        assert (response.status_code, response.headers["x-max-tokens"]) == (200, str(512 - num_prompt))
        response = await served.client.post("/v1/chat/completions", json=asked | {"max_tokens": 5})
        assert "x-max-tokens" not in response.headers


@pytest.mark.parametrize("settings", [Settings(strict_fields=True)])
async def test_the_engines_refusal_names_the_limit_that_was_sent(served):
    served.engine.fits = 3
    for name in LIMITS:
        response = await served.client.post("/v1/chat/completions", json={"messages": MESSAGES, name: 500})
        error = response.json()["error"]
        assert (error["param"], error["message"]) == (name, f"set {name} to 3 or less")
        assert error["code"] == "context_length_exceeded"


async def test_equal_limits_under_both_names(served):
    response = await served.client.post(
        "/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 3, "max_completion_tokens": 3}
    )
    assert response.json()["usage"]["completion_tokens"] == 3
