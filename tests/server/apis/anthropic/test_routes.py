"""/v1/messages, whole and streamed, with scripted answers."""

import asyncio
import json

import pytest
from fake_engine import answer_text
from serving import parse_events, stream_events
from tables import table

from splitfuse.engine.core.outputs import OutputDelta
from splitfuse.engine.errors import InvalidRequestError
from splitfuse.engine.language.chat.template import ChatTemplate
from splitfuse.server.api import streaming
from splitfuse.server.apis.anthropic.message import ending
from splitfuse.server.jobs.job import Job
from splitfuse.server.settings import Settings

MODEL = "splitfuse-demo-5m"
ASKED = {"messages": [{"role": "user", "content": "Weather?"}], "max_tokens": 100}
TOOLS = [
    {"name": "weather", "input_schema": {"type": "object", "properties": {"town": {"type": "string"}}}},
    {"name": "now", "input_schema": {"type": "object"}},
]
TEMPLATE = """{% for t in tools or [] %}{{ t | tojson }}<tool_call> {% endfor %}{% for m in messages %}
<{{ m.role }}>{{ m.reasoning_content or '' }}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}
{% endfor %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}{{ '<think>' if enable_thinking }}"""
TWO_CALLS = [
    *("Let me ", "look.\n", "<tool", '_call>{"name": "weather", ', '"arguments": {"town"', ': "Rome"}', "}</tool"),
    *('_call><tool_call>{"name": "now", "arguments": {}}', "</tool_call>", ""),
]


@pytest.fixture
def settings():
    return Settings(tool_call_parser="hermes")  # the template prints no whole call


@pytest.fixture
def templated(served):
    served.engine.tokenizer.chat_template = ChatTemplate(TEMPLATE, special_tokens={})
    return served


async def ask(served, path="/v1/messages", **fields):
    return await served.client.post(path, json={**ASKED, **fields})


async def answered(served, **fields):
    response = await ask(served, **fields)
    assert response.status_code == 200, response.text
    return response.json()


async def events_of(served, **fields):
    response = await ask(served, stream=True, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = parse_events(response.text)
    assert [event["event"] for event in events] == [event["data"]["type"] for event in events]
    return [event["data"] for event in events]


def joined(events):
    """Return the message that a client makes of the events."""
    message = events[0]["message"]
    for event in events[1:]:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"] | {"json": ""})
            case "content_block_delta":
                assert event["index"] == len(message["content"]) - 1, "one block after the other"
                kind, text = next(item for item in event["delta"].items() if item[0] != "type")
                name = {"partial_json": "json"}.get(kind, kind)
                message["content"][-1][name] += text
            case "content_block_stop":
                block = message["content"][-1]
                written = block.pop("json")
                block |= {"input": json.loads(written or "{}")} if block["type"] == "tool_use" else {}
            case "message_delta":
                message |= event["delta"] | {name: event[name] for name in ("usage", "weights_version")}
    return message


def shown(message):
    """Return the message without the ids, which differ from answer to answer."""
    blocks = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return message | {"id": "", "content": blocks}


async def both(served, **fields):
    """Return the answer, which is the same whole and in events."""
    whole, streamed = await answered(served, **fields), joined(await events_of(served, **fields))
    assert shown(whole) == shown(streamed)
    return whole


async def test_a_message(served):
    message = await both(served, max_tokens=5, system="Be kind.")
    text = answer_text("<system>Be kind.\n<user>Weather?\n<assistant>", num_tokens=5)
    assert message["id"].startswith("msg_")
    usage = {"input_tokens": 41, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2, "output_tokens": 5}
    head = {"id": "", "type": "message", "role": "assistant", "model": MODEL, "weights_version": 0, "usage": usage}
    end = {"stop_reason": "max_tokens", "stop_sequence": None}
    assert shown(message) == head | end | {"content": [{"type": "text", "text": text}]}


async def test_the_events_of_a_text(served):
    served.engine.script = ["Hel", "", "lo"]
    events = await events_of(served)
    assert [event["type"] for event in events] == [
        *("message_start", "content_block_start", "content_block_delta"),
        *["content_block_delta"] * (len(events) - 6),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    start = events[0]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert (start["usage"]["input_tokens"], start["usage"]["output_tokens"]) == (26, 0)
    assert events[1] == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert events[2]["delta"]["type"] == "text_delta"
    assert joined(events)["content"] == [{"type": "text", "text": "Hello"}]


async def test_an_answer_without_text_has_no_blocks(served):
    served.engine.script = [""]
    message = await both(served)
    assert (message["content"], message["stop_reason"]) == ([], "end_turn")


async def test_tokens_go_out_as_they_come(served):
    served.engine.hold()
    async with served.client.stream("POST", "/v1/messages", json={**ASKED, "stream": True}) as response:
        events = stream_events(response)
        assert (await anext(events))["event"] == "message_start"
        await served.engine.allow(1)
        assert [(await anext(events))["event"] for _ in range(2)] == ["content_block_start", "content_block_delta"]
    await asyncio.wait_for(served.engine.abort_seen.wait(), 60)


async def test_a_disconnect_ends_a_message_that_is_not_streamed(served):
    served.engine.hold()
    task = asyncio.create_task(ask(served))
    await served.engine.submitted.wait()
    task.cancel()
    await asyncio.wait_for(served.engine.abort_seen.wait(), 60)


async def test_calls(templated):
    templated.engine.script = TWO_CALLS
    message = await both(templated, tools=TOOLS)
    assert shown(message)["content"] == [
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "name": "weather", "input": {"town": "Rome"}},
        {"type": "tool_use", "name": "now", "input": {}},
    ]
    ids = [block["id"] for block in message["content"][1:]]
    assert len(set(ids)) == 2
    assert all(call_id.startswith("toolu_") for call_id in ids)
    assert message["stop_reason"] == "tool_use"


async def test_arguments_do_not_wait_for_their_end(templated):
    templated.engine.script = TWO_CALLS
    templated.engine.hold()
    body = {**ASKED, "tools": TOOLS, "stream": True}
    async with templated.client.stream("POST", "/v1/messages", json=body) as response:
        events, texts = stream_events(response), []
        await templated.engine.allow(5)
        while not texts:
            delta = (await anext(events))["data"].get("delta", {})
            texts += [delta["partial_json"]] if "partial_json" in delta else []
        assert texts == ['{"town"']


async def test_at_most_one_call(templated):
    templated.engine.script = TWO_CALLS
    message = await both(templated, tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [block["type"] for block in message["content"]] == ["text", "tool_use"]


async def test_a_call_that_is_cut_off_has_what_there_is(templated):
    templated.engine.script = ['<tool_call>{"name": "weather", "arguments": ', '{"town": "Rome", "d', "ays"]
    whole = await answered(templated, tools=TOOLS)
    assert whole["content"][0]["input"] == {"town": "Rome"}
    served_deltas = [event.get("delta", {}) for event in await events_of(templated, tools=TOOLS)]
    assert "".join(delta.get("partial_json", "") for delta in served_deltas) == '{"town": "Rome", "days'


async def test_calls_and_results_stand_in_the_prompt(templated):
    templated.engine.script = ["Rain."]
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"town": "Rome"}}
    turns = [
        *ASKED["messages"],
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "wet"}]},
    ]
    templated.engine.hold()
    task = asyncio.create_task(ask(templated, messages=turns, tools=TOOLS))
    await templated.engine.submitted.wait()
    (handle,) = templated.engine.handles.values()
    assert '"name": "weather"' in handle.prompt
    assert '<assistant>{"name": "weather", "arguments": {"town": "Rome"}}\n<tool>wet<assistant>' in handle.prompt
    await templated.engine.allow()
    assert (await task).json()["content"][0]["text"] == "Rain."


@pytest.mark.parametrize(
    ("choice", "mode"),
    [({"type": "any"}, "forced"), ({"type": "tool", "name": "now"}, "forced"), ({"type": "none"}, "none")],
)
async def test_tool_choice(templated, choice, mode):
    templated.engine.hold()
    task = asyncio.create_task(ask(templated, tools=TOOLS, tool_choice=choice))
    await templated.engine.submitted.wait()
    (handle,) = templated.engine.handles.values()
    outputs = handle.params.structured_outputs
    assert (outputs is not None) == (mode == "forced")
    assert ('"name": "now"' in handle.prompt) == (mode == "forced")
    if "name" in choice:
        assert '"name": "weather"' not in handle.prompt
        assert "weather" not in outputs.grammar
    await templated.engine.allow()
    await task


async def test_thinking(templated):
    templated.engine.script = ["A to", "wn.</thi", "nk>\n\nRome", "."]
    message = await both(templated, thinking={"type": "enabled", "budget_tokens": 1024})
    assert message["content"] == [
        {"type": "thinking", "thinking": "A town.", "signature": ""},
        {"type": "text", "text": "Rome."},
    ]
    events = await events_of(templated, thinking={"type": "adaptive", "display": "summarized"})
    deltas = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert deltas.index("signature_delta") == deltas.count("thinking_delta")
    plain = await both(templated, thinking={"type": "disabled"})
    assert plain["usage"]["input_tokens"] == message["usage"]["input_tokens"] - len("<think>")
    assert plain["usage"] == (await answered(templated))["usage"], "who does not ask for it gets none"


async def test_stop_sequences(served):
    served.engine.hold()
    task = asyncio.create_task(ask(served, stop_sequences=["END", "."]))
    await served.engine.submitted.wait()
    (handle,) = served.engine.handles.values()
    assert handle.params.stop == ("END", ".")
    await served.engine.allow()
    await task
    for wrong in ({"stop_sequences": [""]}, {"stop_sequences": ["x"] * 17}):
        error = (await ask(served, **wrong)).json()["error"]
        assert "stop_sequences" in error["message"]


def test_a_stop_sequence_is_named():
    job = Job("x", model="m")
    job.sink(OutputDelta("x", 0, "a", (1,), finish_reason="stop", stop_reason="END"))
    assert ending(job, has_called=False, max_tokens=9) == {"stop_reason": "stop_sequence", "stop_sequence": "END"}


async def test_sampling_and_the_user(served):
    served.engine.hold()
    fields = {"temperature": 0.5, "top_k": 5, "top_p": 0.9, "priority": -1, "metadata": {"user_id": "team"}}
    task = asyncio.create_task(ask(served, **fields, max_tokens=10_000))
    await served.engine.submitted.wait()
    (handle,) = served.engine.handles.values()
    params = handle.params
    assert (params.temperature, params.top_k, params.top_p, params.priority) == (0.5, 5, 0.9, -1)
    assert (params.max_tokens, params.default_max_tokens) == (None, 10_000), "a limit, cut to what fits"
    assert served.engine.tenants == ["team"]
    await served.engine.allow()
    message = (await task).json()
    assert message["usage"]["output_tokens"] == 512 - 26
    assert message["stop_reason"] == "model_context_window_exceeded"


async def test_the_sessions_of_claude_codes_user_are_one_tenant(served):
    for form in ('{{"device_id":"{}","account_uuid":"","session_id":"{}"}}', "user_{}_account__session_{}"):
        served.engine.tenants.clear()
        for user, session in (("a1", "b-2"), ("a1", "c-3"), ("d4", "b-2")):
            await answered(served, metadata={"user_id": form.format(user, session)}, max_tokens=1)
        first, second, other = served.engine.tenants
        assert first == second != other
        assert "a1" in first


async def test_an_output_format(served):
    served.engine.hold()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    fields = {"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": schema}}}
    task = asyncio.create_task(ask(served, **fields))
    await served.engine.submitted.wait()
    (handle,) = served.engine.handles.values()
    assert handle.params.structured_outputs.json == json.dumps(schema, separators=(",", ":"))
    await served.engine.allow()
    await task


async def test_a_last_turn_of_the_assistant_is_continued(templated):
    turns = [*ASKED["messages"], {"role": "assistant", "content": "It is"}]
    counted = await ask(templated, "/v1/messages/count_tokens", messages=turns)
    assert counted.json() == {"input_tokens": len("<user>Weather?<assistant>It is")}
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}
    refused = await ask(templated, messages=[*turns[:1], {"role": "assistant", "content": [call]}])
    assert refused.status_code == 400
    assert "tool_result" in refused.json()["error"]["message"]


async def test_count_tokens(served):
    fields = {"system": "Be kind.", "messages": ASKED["messages"], "model": MODEL}
    counted = await served.client.post("/v1/messages/count_tokens", json=fields)
    message = await answered(served, **fields)
    assert counted.json() == {"input_tokens": message["usage"]["input_tokens"] + 2}
    assert counted.headers["request-id"] == counted.headers["x-request-id"]
    assert served.engine.num_submitted == 1


async def test_what_changes_nothing_is_accepted(served):
    fields = {"cache_control": {"type": "ephemeral"}, "context_management": {"edits": []}, "mcp_servers": []}
    await answered(served, **fields, service_tier="auto", container=None, betas=["x"], inference_geo="eu", speed="fast")


def error_of(response, status, kind):
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"type", "error", "request_id"}
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    return body["error"]["message"]


async def test_refusals_have_anthropics_envelope(served):
    for fields, said in table(__file__, "refusals"):
        assert said in error_of(await ask(served, **fields), 400, "invalid_request_error"), fields


async def test_every_failure_has_the_envelope(served, monkeypatch):
    assert MODEL in error_of(await ask(served, model="claude"), 404, "not_found_error")
    error_of(await served.client.get("/v1/messages"), 405, "invalid_request_error")
    error_of(await ask(served, "/v1/messages/nothing"), 404, "not_found_error")
    served.engine.queue_is_full = True
    full = await ask(served)
    error_of(full, 429, "rate_limit_error")
    assert full.headers["retry-after"] == "3"
    served.engine.queue_is_full = False
    served.engine.submit_error = KeyError("bug")
    error_of(await ask(served), 500, "api_error")
    served.engine.submit_error = None
    too_long = await ask(served, system="x" * 600)
    assert error_of(too_long, 400, "invalid_request_error").startswith("prompt is too long: ")
    monkeypatch.setitem(vars(served.service.settings), "max_body_bytes", 10)
    error_of(await ask(served), 413, "request_too_large")
    served.engine.is_draining = True
    served.service.lifecycle.is_draining = True
    monkeypatch.undo()
    draining = await ask(served)
    error_of(draining, 503, "overloaded_error")
    assert draining.headers["retry-after"] == "2"
    elsewhere = await served.client.get("/v1/messagesx")
    assert elsewhere.json()["error"]["code"] is None, "other paths have the common envelope"


@pytest.mark.parametrize("settings", [Settings(api_key=("secret",))])
async def test_the_key(served):
    error_of(await ask(served), 401, "authentication_error")
    response = await served.client.post("/v1/messages", json=ASKED, headers={"x-api-key": "secret"})
    assert response.status_code == 200


async def test_a_failure_inside_the_stream_is_an_event(served):
    served.engine.fail_at = 2
    response = await ask(served, stream=True)
    *_, last = parse_events(response.text)
    assert (last["event"], last["data"]["type"]) == ("error", "error")
    assert last["data"]["error"]["type"] == "api_error"
    assert last["data"]["request_id"] == response.headers["request-id"]
    assert "secret" not in response.text
    error_of(await ask(served), 500, "api_error")


async def test_silence_is_broken_by_pings(served, monkeypatch):
    monkeypatch.setattr(streaming, "PING_S", 0.01)
    served.engine.hold()
    async with served.client.stream("POST", "/v1/messages", json={**ASKED, "stream": True}) as response:
        events = stream_events(response)
        assert (await anext(events))["event"] == "message_start"
        assert await anext(events) == {"event": "ping", "data": {"type": "ping"}}


async def test_a_refused_constraint_is_a_400(served):
    served.engine.submit_error = InvalidRequestError("no", param="tools")
    error_of(await ask(served, stream=True), 400, "invalid_request_error")
