"""/v1/responses as the `openai` package sends and reads it; its store is that of /result."""

import asyncio
import json

import openai
import pytest
from fake_engine import answer_text
from serving import parse_events

from splitfuse.engine.language.chat.template import ChatTemplate
from splitfuse.server.settings import Settings

MODEL = "splitfuse-demo-5m"
PROMPT = "<user>Hello\n<assistant>"
TEMPLATE = """{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}<{{ m.role }}>
{{- '(' ~ m.reasoning_content ~ ')' if m.reasoning_content }}{{ m.content }}
{%- for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}
{{- '<think>' if reasoning_effort == 'high' }}"""
TOOLS = [
    {
        "type": "function",
        "name": "weather",
        "description": "The weather",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
        "strict": True,
    }
]
THOUGHT = [*("<think>", "Hm", "."), "</think>", *("Let me", " look.\n"), '<tool_call>{"name": "weather", "arguments"']
THOUGHT += [': {"town"', ': "Rome"}}', "</tool_call>", '<tool_call>{"name": "weather", "arguments": {}}</tool_call>']


@pytest.fixture
def thinking(served):
    """Return a model that thinks and calls."""
    served.engine.tokenizer.chat_template = ChatTemplate(TEMPLATE, special_tokens={})
    served.engine.script = THOUGHT
    return served


def told(text):
    """Return the data of a stream's events."""
    return [event["data"] for event in parse_events(text)]


async def test_a_response(client):
    response = await client.responses.create(model=MODEL, input="Hello", max_output_tokens=6, temperature=0.5)
    assert response.id.startswith("resp_")
    assert (response.object, response.status, response.model) == ("response", "incomplete", MODEL)
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text == answer_text(PROMPT, num_tokens=6)
    (message,) = response.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "incomplete")
    assert message.id.startswith("msg_")
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (len(PROMPT), 6, len(PROMPT) + 6)
    assert usage.input_tokens_details.cached_tokens == 2
    assert (response.temperature, response.max_output_tokens, response.text.format.type) == (0.5, 6, "text")
    assert (response.tool_choice, response.tools, response.parallel_tool_calls) == ("auto", [], True)
    assert response.error is None


@pytest.mark.parametrize("more", [{}, {"presence_penalty": 0.5, "top_logprobs": 2, "safety_identifier": "a"}])
async def test_a_response_has_every_key_of_open_responses(served, more):
    """They are there if only null: in the answer, in the events and when the response is read again."""
    tool = {"type": "function", "name": "f"}
    body = {"input": "Hello", "max_output_tokens": 4, "tools": [tool], **more}
    whole = (await served.client.post("/v1/responses", json=body)).json()
    again = (await served.client.get(f"/v1/responses/{whole['id']}")).json()
    events = told((await served.client.post("/v1/responses", json={**body, "stream": True})).text)
    shown = [event["response"] for event in events if "response" in event]
    assert len(shown) == 3
    for response in (whole, again, *shown):
        expected = dict.fromkeys(("max_tool_calls", "service_tier", "safety_identifier", "prompt_cache_key"))
        expected |= {"presence_penalty": 0.0, "frequency_penalty": 0.0, "top_logprobs": 0, **more}
        assert {name: response.get(name, "absent") for name in expected} == expected
        assert response["tools"] == [{**tool, "description": None, "parameters": None, "strict": None}]
    native = (await served.client.post("/generate", json={"prompt": "a", "max_tokens": 1})).json()["seq_id"]
    assert (await served.client.get(f"/v1/responses/resp_{native}")).json()["top_logprobs"] == 0


async def test_a_response_that_ends_by_itself_is_complete(client, served):
    served.engine.script = ["Hi", " there"]
    response = await client.responses.create(model=MODEL, input="Hello", metadata={"a": "b"}, user="me")
    assert (response.status, response.incomplete_details, response.metadata) == ("completed", None, {"a": "b"})
    assert (response.output_text, response.output[0].status) == ("Hi there", "completed")


async def test_it_can_be_read_again_here_and_by_the_native_route(client, served):
    response = await client.responses.create(model=MODEL, input="Hello", max_output_tokens=4)
    again = await client.responses.retrieve(response.id)
    assert again == response
    seq_id = response.id.removeprefix("resp_")
    for name in (seq_id, response.id):
        result = (await served.client.get(f"/result/{name}")).json()
        assert (result["text"], result["seq_id"]) == (response.output_text, seq_id)
    job = (await served.client.post("/generate", json={"prompt": "hello", "max_tokens": 3, "n": 2})).json()
    await served.client.get(job["result_url"] + "?wait=60")
    native = await client.responses.retrieve(f"resp_{job['seq_id']}")
    assert (native.output_text, native.status) == (answer_text("hello", num_tokens=3), "incomplete")
    assert native.usage.output_tokens == 6


async def test_what_is_not_stored_is_gone(client, served):
    response = await client.responses.create(model=MODEL, input="Hello", max_output_tokens=4, store=False)
    assert response.output_text
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response.id)
    assert len(served.service.results) == 0


async def test_in_the_background(client, served):
    served.engine.hold()
    response = await client.responses.create(model=MODEL, input="Hello", max_output_tokens=4, background=True)
    assert (response.status, response.output, response.usage, response.background) == ("queued", [], None, True)
    await served.engine.allow(2)
    job = served.service.results.get(response.id.removeprefix("resp_"), owner="")
    while len(job.events) < 2:
        await asyncio.wait_for(job.changed.wait(), 60)
    response = await client.responses.retrieve(response.id)
    assert (response.status, response.output_text) == ("in_progress", answer_text(PROMPT, num_tokens=2))
    assert response.output[0].status == "in_progress"
    await served.engine.allow()
    await job.ended.wait()
    response = await client.responses.retrieve(response.id)
    assert (response.status, response.output_text) == ("incomplete", answer_text(PROMPT, num_tokens=4))


async def test_cancel_keeps_what_there_is(client, served):
    served.engine.hold()
    response = await client.responses.create(model=MODEL, input="Hello", background=True)
    await served.engine.allow(2)
    cancelled = await client.responses.cancel(response.id)
    assert cancelled.status == "cancelled"
    assert (await client.responses.retrieve(response.id)).status == "cancelled"
    assert len(served.engine.aborted) == 1
    finished = await client.responses.create(model=MODEL, input="Hello", max_output_tokens=1, background=True)
    await served.service.results.get(finished.id.removeprefix("resp_"), owner="").ended.wait()
    assert (await client.responses.cancel(finished.id)).status == "incomplete"


async def test_delete_forgets(client, served):
    served.engine.hold()
    response = await client.responses.create(model=MODEL, input="Hello", background=True)
    assert await client.responses.delete(response.id) is None
    assert len(served.engine.aborted) == 1
    for call in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            await call(response.id)
    body = (await served.client.delete("/v1/responses/resp_x")).json()
    assert body == (await served.client.get("/v1/responses/no/such/path")).json()


EVENTS = [
    *("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"),
    *["response.output_text.delta"] * 3,
    *("response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"),
]


async def test_a_stream(client):
    stream = await client.responses.create(model=MODEL, input="Hello", max_output_tokens=3, stream=True)
    events = [event async for event in stream]
    assert [event.type for event in events] == EVENTS
    assert [event.sequence_number for event in events] == list(range(len(EVENTS)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == answer_text(PROMPT, num_tokens=3)
    assert (events[0].response.status, events[0].response.output) == ("in_progress", [])
    assert events[-1].response.output_text == text
    assert await client.responses.retrieve(events[0].response.id) == events[-1].response


async def test_the_openai_package_follows_a_stream(client, served):
    served.engine.script = ["Hi", " there"]
    async with client.responses.stream(model=MODEL, input="Hello") as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert (deltas, final.output_text, final.status) == (["Hi", " there"], "Hi there", "completed")


async def test_reasoning_and_calls_are_items(client, thinking):
    response = await client.responses.create(model=MODEL, input="Weather?", tools=TOOLS)
    reasoning, message, first, second = response.output
    assert (reasoning.type, reasoning.content[0].text, reasoning.summary) == ("reasoning", "Hm.", [])
    assert message.content[0].text == "Let me look."
    assert (first.type, first.name, json.loads(first.arguments)) == ("function_call", "weather", {"town": "Rome"})
    assert (second.arguments, second.status) == ("{}", "completed")
    assert first.call_id != second.call_id
    assert response.usage.output_tokens_details.reasoning_tokens == 3
    assert response.tools[0].name == "weather"


async def test_reasoning_and_calls_are_streamed(client, thinking):
    async with client.responses.stream(model=MODEL, input="Weather?", tools=TOOLS) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    kinds = [event.type.removeprefix("response.") for event in events]
    assert [kind for kind in kinds if not kind.endswith("delta")] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.done", "output_item.done") * 2,
        "completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]
    assert final.output[2].parsed_arguments == {"town": "Rome"}
    assert "".join(e.delta for e in events if e.type == "response.reasoning_text.delta") == "Hm."
    again = await client.responses.retrieve(final.id)
    assert [item.id for item in again.output] == [item.id for item in final.output]


async def test_a_stream_is_told_again_from_any_event_on(client, thinking):
    first = await thinking.client.post("/v1/responses", json={"input": "x", "tools": TOOLS, "stream": True})
    events = told(first.text)
    response_id = events[0]["response"]["id"]
    for after in range(-1, len(events)):
        query = {"stream": "true"} | ({"starting_after": after} if after >= 0 else {})
        again = await thinking.client.get(f"/v1/responses/{response_id}", params=query)
        assert told(again.text) == events[after + 1 :]
    stream = await client.responses.retrieve(response_id, stream=True, starting_after=3)
    assert (await anext(aiter(stream))).sequence_number == 4
    await stream.close()
    bad = await thinking.client.get(f"/v1/responses/{response_id}", params={"stream": "true", "starting_after": "x"})
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "starting_after")


async def test_a_background_stream_outlives_its_client(client, served):
    served.engine.hold()
    stream = await client.responses.create(
        model=MODEL, input="Hello", max_output_tokens=4, background=True, stream=True
    )
    events = aiter(stream)
    created, queued = await anext(events), await anext(events)
    assert (created.response.status, queued.type) == ("queued", "response.queued")
    await stream.close()
    await served.engine.allow()
    job = served.service.results.get(created.response.id.removeprefix("resp_"), owner="")
    await job.ended.wait()
    assert served.engine.aborted == []
    rest = await client.responses.retrieve(created.response.id, stream=True, starting_after=1)
    assert [event.type async for event in rest][-1] == "response.incomplete"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_disconnect_ends_any_other_response(served, is_stream):
    served.engine.hold()
    body = {"input": "Hello", "stream": is_stream}

    async def ask():
        async with served.client.stream("POST", "/v1/responses", json=body) as response:
            await response.aread()

    task = asyncio.create_task(ask())
    await served.engine.submitted.wait()
    await asyncio.sleep(0.05)  # until the server listens for the end of the connection
    task.cancel()
    await asyncio.wait_for(served.engine.abort_seen.wait(), 60)


async def test_a_conversation_goes_on(client, thinking):
    first = await client.responses.create(
        model=MODEL, input="Weather?", instructions="Be brief.", tools=TOOLS, reasoning={"effort": "high"}
    )
    outputs = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
        for item in first.output
        if item.type == "function_call"
    ]
    thinking.engine.script = ["Wet."]
    second = await client.responses.create(
        model=MODEL, previous_response_id=first.id, input=outputs, instructions="Be long."
    )
    prompt = (
        "<system>Be long.<user>Weather?<assistant>(Hm.)Let me look."
        '<tool_call>{"name": "weather", "arguments": {"town": "Rome"}}</tool_call>'
        '<tool_call>{"name": "weather", "arguments": {}}</tool_call><tool>rain<tool>rain'
    )
    assert second.usage.input_tokens == len(prompt)
    assert second.previous_response_id == first.id
    third = await client.responses.create(model=MODEL, previous_response_id=second.id, input="Thanks")
    assert third.usage.input_tokens == len(prompt.removeprefix("<system>Be long.") + "<assistant>Wet.<user>Thanks")


async def test_a_response_of_nothing_but_reasoning_can_be_gone_on_with(client, thinking):
    first = await client.responses.create(model=MODEL, input="Weather?", max_output_tokens=2)
    assert [item.type for item in first.output] == ["reasoning"]
    second = await client.responses.create(model=MODEL, previous_response_id=first.id, input="Well?")
    assert second.usage.input_tokens == len("<user>Weather?<user>Well?")


async def test_items_of_all_kinds(client, thinking):
    thinking.engine.script = ["x"]
    items = [
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Wait.", "annotations": []}]},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"town": "Rome"}'},
        {"type": "function_call", "call_id": "call_2", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "rain"}]},
        {"type": "reasoning", "summary": []},
    ]
    response = await client.responses.create(model=MODEL, input=items, instructions="First.")
    prompt = (
        "<system>First.\n\nBe kind.<user>Hi<assistant>(Hm)Wait."
        '<tool_call>{"name": "weather", "arguments": {"town": "Rome"}}</tool_call>'
        '<tool_call>{"name": "weather", "arguments": {}}</tool_call><tool>rain'
    )
    assert response.usage.input_tokens == len(prompt)


async def test_logprobs_if_they_are_included(client, served):
    asked = {"model": MODEL, "input": "Hello", "max_output_tokens": 3}
    response = await client.responses.create(**asked, include=["message.output_text.logprobs"], top_logprobs=2)
    (part,) = response.output[0].content
    assert "".join(token.token for token in part.logprobs) == part.text
    assert [top.token for top in part.logprobs[0].top_logprobs] == ["a", "b"]
    stream = await client.responses.create(**asked, include=["message.output_text.logprobs"], stream=True)
    deltas = [event async for event in stream if event.type == "response.output_text.delta"]
    assert [len(delta.logprobs) for delta in deltas] == [1, 1, 1]
    plain = await client.responses.create(**asked, include=["reasoning.encrypted_content"])
    assert plain.output[0].content[0].logprobs == []


async def test_a_failure(client, served):
    served.engine.fail_at = 1
    with pytest.raises(openai.InternalServerError):
        await client.responses.create(model=MODEL, input="Hello")
    response = await client.responses.create(model=MODEL, input="Hello", background=True)
    await served.service.results.get(response.id.removeprefix("resp_"), owner="").ended.wait()
    response = await client.responses.retrieve(response.id)
    assert (response.status, response.error.code, response.usage.output_tokens) == ("failed", "server_error", 1)
    assert "secret" not in response.error.message
    stream = await client.responses.create(model=MODEL, input="Hello", stream=True)
    events = [event async for event in stream]
    assert (events[-1].type, events[-1].response.error.code) == ("response.failed", "server_error")


async def test_a_response_that_is_left_to_another_process_is_no_answer(served):
    served.engine.hold()
    body = {"input": "Hello", "max_output_tokens": 3}
    answer = asyncio.create_task(served.client.post("/v1/responses", json=body))
    await served.engine.submitted.wait()
    (job,) = served.service.results.unfinished()
    job.suspend()
    response = await answer
    assert (response.status_code, response.json()["error"]["code"]) == (503, "resuming")


@pytest.mark.parametrize("settings", [Settings(api_key=("mine", "yours"))])
async def test_tenants_do_not_see_each_other(served):
    mine, yours = ({"authorization": f"Bearer {key}"} for key in ("mine", "yours"))
    body = {"input": "Hello", "max_output_tokens": 2}
    made = (await served.client.post("/v1/responses", json=body, headers=mine)).json()
    path = f"/v1/responses/{made['id']}"
    assert (await served.client.get(path, headers=mine)).status_code == 200
    absent = await served.client.get("/v1/responses/resp_" + "x" * 32, headers=yours)
    for method, where in [("GET", path), ("POST", path + "/cancel"), ("DELETE", path), ("GET", path + "?stream=true")]:
        answer = await served.client.request(method, where, headers=yours)
        assert (answer.status_code, answer.content) == (404, absent.content)
    going_on = {**body, "previous_response_id": made["id"]}
    refused = await served.client.post("/v1/responses", json=going_on, headers=yours)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "previous_response_not_found")
    assert (await served.client.get(path, headers=mine)).status_code == 200


@pytest.mark.parametrize("settings", [Settings(max_result_bytes=20_000)])
async def test_conversations_count_as_kept_bytes(served):
    for _ in range(6):
        body = {"input": "x" * 400, "max_output_tokens": 1, "metadata": {"note": "y" * 2000}}
        assert (await served.client.post("/v1/responses", json=body)).status_code == 200
        served.service.results.check()
    assert len(served.service.results) < 6
    assert served.service.results.num_bytes <= 20_000


async def test_a_running_or_foreign_response_cannot_be_gone_on_with(client, served):
    served.engine.hold()
    response = await client.responses.create(model=MODEL, input="Hello", background=True)
    with pytest.raises(openai.BadRequestError, match="not finished"):
        await client.responses.create(model=MODEL, previous_response_id=response.id, input="x")
    job = (await served.client.post("/generate", json={"prompt": "hello"})).json()
    with pytest.raises(openai.BadRequestError, match="was not made by"):
        await client.responses.create(model=MODEL, previous_response_id=job["seq_id"], input="x")
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="other", input="x")


async def test_a_long_response_is_read_without_holding_the_loop(served):
    served.engine.script = ["word "] * 480
    made = (await served.client.post("/v1/responses", json={"input": "x"})).json()
    assert made["output"][0]["content"][0]["text"] == "word " * 480


async def test_it_needs_a_ready_engine(served):
    served.engine.is_draining = True
    assert (await served.client.post("/v1/responses", json={"input": "x"})).status_code == 503
    assert len(served.service.results) == 0


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_limit_beyond_the_context_is_cut_and_said(served, is_stream):
    asked = {"input": "Hello", "max_output_tokens": 5000, "stream": is_stream}
    response = await served.client.post("/v1/responses", json=asked)
    assert (response.status_code, response.headers["x-max-tokens"]) == (200, str(512 - len(PROMPT)))
    response = await served.client.post("/v1/responses", json=asked | {"max_output_tokens": 5})
    assert (response.status_code, "x-max-tokens" in response.headers) == (200, False)


@pytest.mark.parametrize("settings", [Settings(strict_fields=True)])
async def test_a_strict_server_refuses_such_a_limit(served):
    response = await served.client.post("/v1/responses", json={"input": "Hello", "max_output_tokens": 5000})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_the_tokens_of_an_input_are_counted(served):
    url = "/v1/responses/input_tokens"
    assert (await served.client.post(url, json={"input": "Hello"})).json() == {
        "object": "response.input_tokens",
        "input_tokens": len(PROMPT),
    }
    assert not served.engine.num_submitted
    body = {"input": "Hello", "max_output_tokens": 2}
    first = (await served.client.post("/v1/responses", json=body)).json()
    more = {"input": "More", "instructions": "Be kind.", "previous_response_id": first["id"]}
    counted = (await served.client.post(url, json=more)).json()["input_tokens"]
    second = (await served.client.post("/v1/responses", json={**more, "max_output_tokens": 2})).json()
    assert counted == second["usage"]["input_tokens"]
    for wrong in ({}, {"input": "x", "previous_response_id": "none"}, {"input": "x", "temperature": 900}):
        assert (await served.client.post(url, json=wrong)).status_code == 400
