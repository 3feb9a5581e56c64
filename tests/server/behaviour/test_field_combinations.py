"""Random combinations of fields on every route, sensible or not: an answer, or a 400 that names one of them."""

import json
import os
import random

import pytest

NUM_REQUESTS = int(os.environ.get("SPLITFUSE_TEST_REQUESTS", "40"))
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}}
FLAT = {"type": "function", **TOOL["function"]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}}
ODD = [None, True, 0, -1, 1.5, "", "x", [], ["x"], {}, {"type": "text"}, {"type": []}, [None], {"a": {"b": [0]}}]
SAMPLING = {
    "max_tokens": [1, 3, 511],
    "min_tokens": [0, 2],
    "n": [1, 2],
    "stop": ["a", ["a", "b"]],
    "temperature": [0, 2.0],
    "allowed_token_ids": [[5], [300, 301]],
    "bad_words": [["a"]],
    "ignore_eos": [True],
    "logit_bias": [{"5": 10}],
    "prompt_logprobs": [0, 3],
    "truncate_prompt_tokens": [1],
    "stream": [False, True],
    "structured_outputs": [
        *({"regex": "a+"}, {"json": SCHEMA}, {"choice": ["a", "b"]}, {"json_object": True}, {"regex": "("}),
        *({"regex": "a", "json": {}}, {"grammar": "start: x"}, {"json": {}, "whitespace_pattern": "("}, {"x": 1}),
    ],
}
RESPONSE_FORMAT = [
    *({"type": "text"}, {"type": "json_object"}, {"type": "json_schema"}, {"type": "xml"}),
    {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nothing"}}},
]
CALLS = {
    "tools": [[TOOL], [TOOL, TOOL], [FLAT]],
    "tool_choice": [
        *("none", "auto", "required", "any", {"type": "function", "function": {"name": "f"}}),
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [TOOL]}},
    ],
    "parallel_tool_calls": [True, False],
    "chat_template_kwargs": [{"a": 1}, {"messages": []}],
    "reasoning_effort": ["low"],
}
ROUTES = {
    "/generate": {"prompt": ["x", [5, 6]], **SAMPLING, "response_format": RESPONSE_FORMAT, "logprobs": [0, 2]},
    "/v1/completions": {
        "prompt": ["x", [5, 6], ["x", "y"]], **SAMPLING, "response_format": RESPONSE_FORMAT, "logprobs": [0, 2],
        "echo": [True], "best_of": [1, 2], "stream_options": [{"include_usage": True}],
    },
    "/v1/chat/completions": {
        "messages": [[{"role": "user", "content": "x"}], [{"role": "user"}, {"role": "assistant", "content": "y"}]],
        **SAMPLING,
        **CALLS,
        "response_format": RESPONSE_FORMAT,
        "logprobs": [True],
        "top_logprobs": [0, 2],
        "max_completion_tokens": [1, 3],
        "continue_final_message": [True],
        "add_generation_prompt": [False, True],
    },
    "/v1/responses": {
        "input": ["x", [{"role": "user", "content": "x"}], [{"type": "reasoning", "summary": []}]],
        **{name: values for name, values in SAMPLING.items() if name not in ("max_tokens", "n", "prompt_logprobs")},
        "tools": [[FLAT], [TOOL]],
        "tool_choice": ["required", {"type": "function", "name": "f"}],
        "parallel_tool_calls": [False],
        "instructions": ["y"],
        "max_output_tokens": [1, 3],
        "store": [False],
        "text": [{"format": form} for form in RESPONSE_FORMAT],
        "include": [["message.output_text.logprobs"]],
        "top_logprobs": [2],
        "background": [True],
        "reasoning": [{"effort": "low"}],
        "metadata": [{"a": "b"}],
        "previous_response_id": ["resp_x"],
        "n": [1],
        "max_tokens": [3],
    },
}  # fmt: skip


def random_body(rng, fields):
    """Return the prompt and a few other fields; one in eight values is of any kind."""
    first, *others = fields
    chosen = [first, *rng.sample(others, rng.randint(1, 5))]
    return {name: rng.choice(ODD if rng.random() < 1 / 8 else fields[name]) for name in chosen}


@pytest.mark.parametrize("route", ROUTES)
async def test_an_answer_or_the_name_of_a_field(live, route):
    rng = random.Random(f"{route}{NUM_REQUESTS}")
    num_answers = 0
    for _ in range(NUM_REQUESTS):
        body = random_body(rng, ROUTES[route])
        response = await live.post(route, json=body)
        if response.status_code in (200, 202):
            num_answers += 1
            assert '"server_error"' not in response.text, body
            continue
        assert response.status_code == 400, (body, response.text)
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        root = str(error["param"]).split(".")[0].split("[")[0]
        assert root in body, (json.dumps(body), error)
        assert len(error["message"]) > 10
    assert NUM_REQUESTS / 10 < num_answers < NUM_REQUESTS * 0.9
