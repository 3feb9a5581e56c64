"""Refusals of /v1/responses, and the fields that they name."""

import dataclasses

from splitfuse.server.apis.responses.request import StoredRequest
from splitfuse.server.apis.responses.routes import KEPT_RESPONSE

TOOLS = [
    {
        "type": "function",
        "name": "weather",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
    }
]
REFUSED = [
    ("input", {"input": None}),
    ("input", {"input": []}),
    ("input", {"input": 5}),
    ("input[0]", {"input": ["x"]}),
    ("input[0]", {"input": [{"type": 5}]}),
    ("input[0].role", {"input": [{"role": "nobody", "content": "x"}]}),
    ("input[0].content", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
    ("input[0].content", {"input": [{"role": "user"}]}),
    ("input[0].type", {"input": [{"type": "item_reference", "id": "x"}]}),
    ("input[0].type", {"input": [{"type": "web_search_call"}]}),
    ("input[0].name", {"input": [{"type": "function_call", "call_id": "x", "arguments": "{}"}]}),
    ("input[0].arguments", {"input": [{"type": "function_call", "call_id": "x", "name": "f", "arguments": 5}]}),
    ("input[0].call_id", {"input": [{"type": "function_call_output", "output": "x"}]}),
    ("input[0].output", {"input": [{"type": "function_call_output", "call_id": "x"}]}),
    ("instructions", {"instructions": 5}),
    ("tools[0].type", {"tools": [{"type": "functoin", "name": "f", "parameters": {}}]}),
    ("tools[0].name", {"tools": [{"type": "function"}]}),
    ("tools[1].name", {"tools": [TOOLS[0], TOOLS[0]]}),
    ("tool_choice", {"tool_choice": {"type": "function", "name": "g"}, "tools": TOOLS}),
    ("max_output_tokens", {"max_output_tokens": 0}),
    ("max_output_tokens", {"max_output_tokens": "5"}),
    ("max_tokens", {"max_tokens": 5}),
    ("n", {"n": 2}),
    ("top_logprobs", {"top_logprobs": 21, "include": ["message.output_text.logprobs"]}),
    ("include", {"include": "x"}),
    ("include[0]", {"include": [5]}),
    ("metadata", {"metadata": [1]}),
    ("metadata", {"metadata": {"a": "x" * 20_000}}),
    ("prompt", {"prompt": {"id": "pmpt_1"}}),
    ("response_format", {"response_format": {"type": "json_object"}}),
    ("background", {"background": True, "store": False}),
    ("background", {"background": 1}),
    ("store", {"store": "yes"}),
    ("stream", {"stream": 1}),
    ("reasoning", {"reasoning": "high"}),
    ("reasoning.effort", {"reasoning": {"effort": 5}}),
    ("input", {"input": "x" * 600}),
    ("max_output_tokens", {"max_output_tokens": 2**31}),
    ("text", {"text": "json"}),
    ("text.schema", {"text": {"schema": {"a": 1}}}),
    ("text.format.type", {"text": {"format": {"type": "xml"}}}),
    ("text.format.type", {"text": {"format": {"type": ["text"]}}}),
    ("text.format.type", {"text": {"format": "json"}}),
    ("text.format.type", {"text": {"format": []}}),
    ("text.format.x", {"text": {"format": {"type": "json_object", "x": 1}}}),
    ("text.format.schema", {"text": {"format": {"type": "json_schema", "name": "x"}}}),
    ("text.format.name", {"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}}),
    ("text.format.name", {"text": {"format": {"type": "json_schema", "schema": {}}}}),
    ("text.format.strict", {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}, "strict": 1}}}),
    (
        "text.format.schema",
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"enum": ["a" * 1_100_000]}}}},
    ),
    ("text.format", {"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}}),
    ("structured_outputs", {"structured_outputs": {"regex": "a", "json": {}}}),
    ("tool_choice", {"tools": TOOLS, "tool_choice": "required", "structured_outputs": {"json_object": True}}),
    ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}),
    ("tools", {"tools": {}}),
    ("tools", {"tools": ""}),
    ("tools[0].strict", {"tools": [{**TOOLS[0], "strict": "yes"}]}),
    ("include", {"include": ""}),
    ("input", {"input": [{"type": "reasoning", "summary": []}]}),
    ("input", {"input": [{"type": "reasoning", "summary": []}], "instructions": "Be brief."}),
    ("previous_response_id", {"previous_response_id": "resp_unknown"}),
    ("previous_response_id", {"previous_response_id": 5}),
    ("chat_template", {"chat_template": "x"}),
    ("temperature", {"temperature": 101}),
    ("no_such_limit", {"no_such_limit": 1}),
    ("messages", {"messages": []}),
    ("prompt_logprobs", {"prompt_logprobs": 1}),
]


async def test_refused_fields_are_named(served):
    for param, fields in REFUSED:
        response = await served.client.post("/v1/responses", json={"input": "x", "max_output_tokens": 2, **fields})
        assert response.status_code == 400, (fields, response.text)
        error = response.json()["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", param), fields
    assert served.engine.num_submitted == 0
    assert len(served.service.results) == 0


def test_a_response_that_an_earlier_version_stored_is_read() -> None:
    stored = StoredRequest(messages=[{"role": "user", "content": "hi"}])
    earlier = dataclasses.asdict(stored) | {"num_earlier": 3}
    assert KEPT_RESPONSE.attachment(earlier) == stored
