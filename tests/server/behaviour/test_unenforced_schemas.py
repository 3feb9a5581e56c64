"""Schemas of which a grammar enforces a part: the complete answer is checked and says so. Answers are scripted."""

import asyncio
import json
import signal

import pytest
from fake_engine import FakeEngine
from serving import parse_events, ready_client

from splitfuse.engine.language.structured_output.schemas.schema_walker import WALKER
from splitfuse.server.app import build_app
from splitfuse.server.settings import Settings

TAGS = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "tags", "schema": TAGS}}
GOOD, BAD = '{"tags": [1, 2]}', '{"tags": [1, 1]}'
LEFT_OUT = [{"path": "/properties/tags/uniqueItems", "keyword": "uniqueItems", "checked": True}]
BROKEN = [{"path": "/tags", "keyword": "uniqueItems"}]
MESSAGES = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "tag", "parameters": TAGS}}
FLAT = {"type": "function", "name": "tag", "parameters": TAGS}
BODIES = {
    "/generate": {"prompt": "x", "max_tokens": 9, "response_format": FORMAT},
    "/v1/completions": {"prompt": "x", "max_tokens": 9, "response_format": FORMAT},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 9, "response_format": FORMAT},
    "/v1/responses": {
        "input": "x",
        "max_output_tokens": 9,
        "text": {"format": {"type": "json_schema", "name": "tags", "schema": TAGS}},
    },
}


async def reported(served, route, **fields):
    """Return the object in which an answer reports, and the headers."""
    response = await served.client.post(route, json=BODIES[route] | fields)
    assert response.status_code in (200, 202), response.text
    if route == "/generate":
        whole = (await served.client.get(response.json()["result_url"] + "?wait=60")).json()["outputs"][0]
    elif route == "/v1/responses":
        whole = response.json()
    else:
        (whole,) = response.json()["choices"]
    return whole, response.headers


@pytest.mark.parametrize("route", BODIES)
async def test_an_answer_says_what_no_grammar_enforced_and_what_it_breaks(served, route):
    served.engine.script = [GOOD, ""]
    whole, headers = await reported(served, route)
    assert headers["x-unenforced"] == "/properties/tags/uniqueItems"
    assert (whole["x_unenforced"], whole["x_schema_errors"]) == (LEFT_OUT, [])
    served.engine.script = [BAD, ""]
    whole, _ = await reported(served, route)
    assert whole["x_schema_errors"] == BROKEN
    assert whole.get("finish_reason", "stop") == "stop"
    served.engine.script = [GOOD[:9]]
    assert (await reported(served, route))[0]["x_schema_errors"] == [{"path": "", "keyword": "json"}]
    metrics = (await served.client.get("/metrics")).text
    assert 'schema_check_failures_total{model_name="splitfuse-demo-5m"} 2.0' in metrics
    deep = '{"items": ' * 500 + "{}" + "}" * 500
    body = {name: value for name, value in BODIES[route].items() if name not in ("response_format", "text")}
    response = await served.client.post(route, json=body | {"structured_outputs": {"json": deep}})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "structured_outputs.json")


@pytest.mark.parametrize("route", BODIES)
async def test_the_loop_turns_while_a_large_schema_is_walked(served, route):
    tags = TAGS["properties"]["tags"]
    schema = {"type": "object", "properties": {f"{route}/{number}": tags for number in range(300)}}
    fields = {"structured_outputs": {"json": schema}, "response_format": None}
    if route == "/v1/responses":
        fields = {"text": {"format": {"type": "json_schema", "name": "tags", "schema": schema}}}
    served.engine.script = ["{}", ""]
    WALKER.walk(json.dumps(route)).result()  # the process has started
    walker = WALKER._process.current.process
    walker.send_signal(signal.SIGSTOP)
    try:
        answer = asyncio.create_task(reported(served, route, **fields))
        async with asyncio.timeout(60):
            while not any(route in text and len(text) > 9000 for text in list(WALKER._kept)):
                assert (await served.client.get("/health")).status_code == 200
        assert not answer.done()
    finally:
        walker.send_signal(signal.SIGCONT)
    whole, headers = await answer
    assert headers["x-unenforced"].startswith(f"/properties/{route.replace('/', '~1')}~10/uniqueItems")
    assert len(whole["x_unenforced"]) == 300


@pytest.mark.parametrize("route", BODIES)
async def test_in_a_stream_the_end_says_it_and_other_answers_say_nothing(served, route):
    served.engine.script = [GOOD, ""]
    plain = {"type": "object", "properties": {"a": {"type": "string", "format": "path"}}}
    fields = {"structured_outputs": {"json": plain}, "response_format": None}
    whole, headers = await reported(served, route, **fields, **({"text": None} if route == "/v1/responses" else {}))
    assert "x-unenforced" not in headers
    assert whole.keys().isdisjoint({"x_unenforced", "x_schema_errors"})
    served.engine.script = [BAD[:5], BAD[5:], ""]
    response = await served.client.post(route, json=BODIES[route] | {"stream": True})
    assert response.headers["x-unenforced"] == "/properties/tags/uniqueItems"
    events = [event["data"] for event in parse_events(response.text) if event["data"] != "[DONE]"]
    last = events[-1]
    whole = last["choices"][0] if "choices" in last else last.get("response") or last["outputs"][0]
    assert (whole["x_unenforced"], whole["x_schema_errors"]) == (LEFT_OUT, BROKEN)
    assert "x_schema_errors" not in json.dumps(events[:-1])


async def test_a_kept_answer_says_it_after_a_restart(tmp_path):
    told = []
    for _ in range(2):
        engine = FakeEngine()
        engine.script = [BAD, ""]
        app = build_app(Settings(results=str(tmp_path / "results")), engine)
        async with ready_client(app) as client:
            if not told:
                seq_id = (await client.post("/generate", json=BODIES["/generate"])).json()["seq_id"]
                response_id = (await client.post("/v1/responses", json=BODIES["/v1/responses"])).json()["id"]
            output = (await client.get(f"/result/{seq_id}?wait=60")).json()["outputs"][0]
            response = (await client.get(f"/v1/responses/{response_id}")).json()
            told.append([(answer["x_unenforced"], answer["x_schema_errors"]) for answer in (output, response)])
    assert told == [[(LEFT_OUT, BROKEN)] * 2] * 2


async def test_arguments_of_forced_calls_are_checked(served):
    call = f'<tool_call>{{"name": "tag", "arguments": {BAD}}}</tool_call>'
    served.engine.script = [call, ""]
    fields = {"tools": [TOOL], "tool_choice": "required", "response_format": None}
    whole, headers = await reported(served, "/v1/chat/completions", **fields)
    assert whole["finish_reason"] == "tool_calls"
    assert headers["x-unenforced"] == "/tag/properties/tags/uniqueItems"
    assert [keyword["path"] for keyword in whole["x_unenforced"]] == ["/tag/properties/tags/uniqueItems"]
    assert whole["x_schema_errors"] == [{"path": "/tag/tags", "keyword": "uniqueItems"}]
    fields = {"tools": [FLAT], "tool_choice": {"type": "function", "name": "tag"}}
    response, _ = await reported(served, "/v1/responses", **fields)
    assert response["output"][0]["type"] == "function_call", "a forced call wins over text.format"
    assert response["x_schema_errors"] == [{"path": "/tag/tags", "keyword": "uniqueItems"}]


@pytest.mark.parametrize("settings", [Settings(reasoning_parser="think")])
async def test_reasoning_is_no_part_of_what_is_checked(served):
    served.engine.script = ["<think>", "Hm", "</think>", GOOD, ""]
    whole, _ = await reported(served, "/v1/chat/completions")
    assert whole["x_schema_errors"] == []


async def test_a_header_of_many_paths_is_bounded(served):
    served.engine.script = ["{}", ""]
    many = {"properties": {f"ü{number:03}": {"uniqueItems": True} for number in range(200)}}
    _, headers = await reported(served, "/v1/completions", response_format={"type": "json_object", "value": many})
    assert len(headers["x-unenforced"]) <= 1030
    assert headers["x-unenforced"].startswith("/properties/%C3%BC000/uniqueItems,")
    assert headers["x-unenforced"].endswith(",...")
