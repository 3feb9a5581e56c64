"""The fields of OpenAI's routes: what changes nothing is accepted, what would be neglected is refused by name."""

import openai
import pytest

from splitfuse.server.settings import Settings

MODEL = "splitfuse-demo-5m"
MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]


@pytest.fixture
async def client(served):
    async with openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="unused", max_retries=0) as client:
        yield client


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
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [TOOL]}}
MANY_BYTES = {"type": "function", "function": {"name": "f", "parameters": {"enum": ["x" * 1_100_000]}}}
REFUSED = {
    "completions": [
        ("echo", {"echo": 0}),
        ("prompt_logprobs", {"prompt_logprobs": 1, "stream": True}),
        ("prompt_logprobs", {"prompt_logprobs": 21}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": False, "echo": True}),
        ("best_of", {"best_of": 2}),
        ("best_of", {"best_of": True}),
        ("messages", {"messages": MESSAGES}),
        ("max_completion_tokens", {"max_completion_tokens": 3}),
        ("logprobs", {"logprobs": True}),
        ("logprobs", {"logprobs": 21}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
        ("stream_options", {"stream": True, "stream_options": True}),
        ("stream_options.include_usage", {"stream": True, "stream_options": {"include_usage": 1}}),
        ("stream_options.include_usag", {"stream": True, "stream_options": {"include_usag": True}}),
        ("stream", {"stream": "yes"}),
        ("no_such_limit", {"no_such_limit": 1}),
        ("prompt", {"prompt": ["x"] * 17}),
        ("prompt", {"prompt": [[1], "x"]}),
        ("prompt", {"prompt": [True]}),
        ("prompt", {"prompt": [1.0]}),
        ("prompt", {"prompt": {"a": 1}}),
        ("prompt", {"prompt": None}),
    ],
    "chat/completions": [
        ("prompt_logprobs", {"prompt_logprobs": 1, "stream": True}),
        ("tools", {"tools": {}}),
        ("tools", {"tools": [TOOL] * 129}),
        ("tools[0].type", {"tools": [{"type": "functoin", "function": {"name": "f"}}]}),
        ("tools[0].type", {"tools": ["f"]}),
        ("tools[0].function", {"tools": [{"type": "function"}]}),
        ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
        ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": "a" * 129}}]}),
        ("tools[0].function.description", {"tools": [{"function": {"name": "f", "description": 5}}]}),
        ("tools[0].function.parameters", {"tools": [{"function": {"name": "f", "parameters": []}}]}),
        ("tools[1].function.name", {"tools": [TOOL, TOOL]}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tool_choice": {"type": "allowed_tools"}, "tools": [TOOL]}),
        ("tool_choice", {"tool_choice": {"type": "allowed_tools", "allowed_tools": 5}, "tools": [TOOL]}),
        ("tool_choice", {"tool_choice": {**ALLOWED, "allowed_tools": {"mode": "auto", "tools": []}}, "tools": [TOOL]}),
        (
            "tool_choice",
            {"tool_choice": {**ALLOWED, "allowed_tools": {"mode": "none", "tools": [TOOL]}}, "tools": [TOOL]},
        ),
        ("tool_choice", {"tool_choice": ALLOWED}),
        ("tool_choice", {"tool_choice": ALLOWED, "tools": [{"type": "function", "function": {"name": "g"}}]}),
        ("tool_choice", {"tool_choice": ALLOWED, "tools": [TOOL], "structured_outputs": {"json_object": True}}),
        ("tools[0].function.strict", {"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}),
        ("tools", {"tools": [MANY_BYTES], "tool_choice": "required"}),
        ("tool_choice", {"tool_choice": "perhaps", "tools": [TOOL]}),
        ("tool_choice", {"tool_choice": 5, "tools": [TOOL]}),
        ("tool_choice", {"tool_choice": {"type": "function"}, "tools": [TOOL]}),
        ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [TOOL]}),
        ("tool_choice", {"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}, "tools": [TOOL]}),
        ("parallel_tool_calls", {"parallel_tool_calls": "no"}),
        ("continue_final_message", {"continue_final_message": True, "add_generation_prompt": True}),
        ("continue_final_message", {"continue_final_message": 1}),
        ("chat_template_kwargs", {"chat_template_kwargs": [1]}),
        ("chat_template_kwargs", {"chat_template_kwargs": {f"a{i}": 1 for i in range(65)}}),
        ("chat_template_kwargs.messages", {"chat_template_kwargs": {"messages": "x"}}),
        ("chat_template_kwargs.chat_template", {"chat_template_kwargs": {"chat_template": "x"}}),
        ("chat_template_kwargs.bos_token", {"chat_template_kwargs": {"bos_token": "x"}}),
        ("chat_template_kwargs.a b", {"chat_template_kwargs": {"a b": 1}}),
        ("chat_template_kwargs.a", {"chat_template_kwargs": {"a": {"b": 1}}}),
        ("reasoning_effort", {"reasoning_effort": 5}),
        ("functions", {"functions": [{"name": "f"}], "tools": [TOOL]}),
        ("modalities", {"modalities": ["audio"]}),
        ("audio", {"audio": {}}),
        ("logprobs", {"logprobs": 1}),
        ("top_logprobs", {"top_logprobs": 2}),
        ("top_logprobs", {"top_logprobs": 21, "logprobs": True}),
        ("top_logprobs", {"top_logprobs": True, "logprobs": True}),
        ("max_completion_tokens", {"max_completion_tokens": 3, "max_tokens": 4}),
        ("max_completion_tokens", {"max_completion_tokens": 0}),
        ("max_completion_tokens", {"max_completion_tokens": True, "max_tokens": 1}),
        ("prompt", {"prompt": "x"}),
        ("echo", {"echo": True}),
        ("chat_template", {"chat_template": "{{ 1 }}"}),
        ("messages", {"messages": []}),
        ("messages", {"messages": "hello"}),
        ("messages[0]", {"messages": ["hello"]}),
        ("messages[0].role", {"messages": [{"content": "x"}]}),
        ("messages[0].role", {"messages": [{"role": ["user"], "content": "x"}]}),
        ("messages[0].content", {"messages": [{"role": "user"}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": []}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        ("messages[0].tool_calls[0]", {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}),
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
