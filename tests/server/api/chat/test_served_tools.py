"""Tools of other types: custom ones and namespaces are functions, those that a server runs are left out."""

import json

import fake_engine
import pytest
from serving import parse_events

from splitfuse.engine.errors import InvalidRequestError
from splitfuse.engine.language.chat.tools import read_tool_choice
from splitfuse.server.api.chat.custom_calls import custom_input
from splitfuse.server.api.chat.served_tools import ServedTools

PATCH = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}}
AGENTS = {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn", "parameters": {}}]}
TOOLS = [{"type": "web_search"}, PATCH, AGENTS, {"type": "function", "name": "f"}]
CALL = ["Ok. ", "<tool_call>", '{"name": "patch", "arguments": {"input": "a\\n', '\\"b\\""}}', "</tool_call>"]
CALL += ["<tool_call>", '{"name": "spawn", "arguments": {"n": 1}}', "</tool_call>"]
INPUT = 'a\n"b"'


@pytest.fixture(autouse=True)
def _long_prompts(monkeypatch):
    monkeypatch.setattr(fake_engine, "MAX_MODEL_LEN", 4096)


def test_tools_of_a_response():
    served = ServedTools.of(TOOLS, are_flat=True)
    assert [tool["function"]["name"] for tool in served.read()] == ["patch", "spawn", "f"]
    assert (served.customs, served.namespaces) == (["patch"], {"spawn": ("agents", "spawn")})
    assert served.ignored == ["tools[].web_search", "tools[].format"]
    assert "start: /a/" in served.read()[0]["function"]["description"]


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "web_search"}, {"type": "function"}], "tools[1].name"),
        ([{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}], "tools[0].tools[0].name"),
        ([{"type": "namespace", "name": "n"}], "tools[0].tools"),
        ([{"type": "namespace", "name": "n", "tools": [AGENTS]}], None),
        ([{"type": "custom"}], "tools[0].name"),
        ([{"type": "custom", "custom": 5}], "tools[0].custom"),
        ([AGENTS, AGENTS], "tools[1].tools[0].name"),
        ([AGENTS, {"type": "function", "name": "agents__spawn"}, {**AGENTS, "name": "x"}], "tools[1].name"),
    ],
)
def test_tools_that_cannot_be_are_named(tools, param):
    if param is None:
        assert ServedTools.of(tools, are_flat=True).read() == []
        return
    with pytest.raises(InvalidRequestError) as info:
        ServedTools.of(tools, are_flat=True).read()
    assert info.value.param == param


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"input": "ab"}', "ab"), ('{"input": "a', "a"), ("a b", "a b"), ('{"x": 1}', ""), ("", "")],
)
def test_the_input_of_a_custom_call(arguments, text):
    assert custom_input(arguments) == text


async def test_calls_on_responses_come_back_in_their_types(served):
    served.engine.script = CALL
    body = {"input": "x", "tools": TOOLS, "max_output_tokens": 20}
    response = await served.client.post("/v1/responses", json=body)
    assert response.headers["x-ignored-fields"] == "tools[].web_search,tools[].format"
    _, patch, spawn = output = response.json()["output"]
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "patch", INPUT)
    assert (spawn["type"], spawn["name"], spawn["namespace"]) == ("function_call", "spawn", "agents")
    events = [
        e["data"] for e in parse_events((await served.client.post("/v1/responses", json=body | {"stream": True})).text)
    ]
    done = {event["type"]: event for event in events}
    assert done["response.custom_tool_call_input.done"]["input"] == INPUT
    assert done["response.completed"]["response"]["output"][1]["input"] == INPUT
    results = [{"type": "custom_tool_call_output", "call_id": patch["call_id"], "output": "done"}]
    again = await served.client.post(
        "/v1/responses", json={**body, "input": [{"role": "user", "content": "x"}, *output, *results]}
    )
    assert again.status_code == 200, again.text


SPAWN = {"type": "function", "name": "spawn", "parameters": {}}
JOBS = {"type": "namespace", "name": "jobs", "tools": [SPAWN, {"type": "custom", "name": "patch"}]}
PAIR = [AGENTS, SPAWN, JOBS, PATCH]
EQUAL_NAMES = [
    ("agents__spawn", ("function_call", "spawn", "agents")),
    ("jobs__spawn", ("function_call", "spawn", "jobs")),
    ("spawn", ("function_call", "spawn", None)),
    ("jobs__patch", ("custom_tool_call", "patch", "jobs")),
    ("patch", ("custom_tool_call", "patch", None)),
]


@pytest.mark.parametrize(("own", "expected"), EQUAL_NAMES)
async def test_equal_names_in_two_namespaces_are_told_apart(own, expected, served):
    served.engine.script = ["<tool_call>", f'{{"name": "{own}", "arguments": {{"input": "a"}}}}', "</tool_call>"]
    body = {"input": [{"role": "user", "content": "x"}], "tools": PAIR, "max_output_tokens": 20}
    first = await served.client.post("/v1/responses", json=body)
    assert first.status_code == 200, first.text
    (call,) = first.json()["output"]
    assert (call["type"], call["name"], call.get("namespace")) == expected
    events = parse_events((await served.client.post("/v1/responses", json=body | {"stream": True})).text)
    (streamed,) = events[-1]["data"]["response"]["output"]
    assert (streamed["type"], streamed["name"], streamed.get("namespace")) == expected
    result = {"type": call["type"] + "_output", "call_id": call["call_id"], "output": "done"}
    again = {**body, "input": [*body["input"], call, result]}
    response = await served.client.post("/v1/responses", json=again)
    assert response.status_code == 200, response.text
    assert "namespace" not in response.headers.get("x-ignored-fields", "")
    kept = ServedTools.of(PAIR, are_flat=True)
    assert kept.by_own_names([call])[0]["name"] == own, "the model reads the name that it wrote"
    choice = {"type": call["type"].removesuffix("_call").removesuffix("_tool"), "name": call["name"]}
    choice |= {"namespace": call["namespace"]} if "namespace" in call else {}
    chosen = read_tool_choice(kept.by_own_names(choice), kept.read())
    assert chosen.names == (own,)
    several = {"type": "allowed_tools", "mode": "auto", "tools": [choice]}
    assert read_tool_choice(kept.by_own_names(several), kept.read()).names == (own,)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_calls_on_chats_come_back_in_their_types(served, is_stream):
    served.engine.script = CALL
    tools = [{"type": "custom", "custom": {"name": "patch"}}, {"type": "function", "function": {"name": "spawn"}}]
    body = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "stream": is_stream}
    response = await served.client.post("/v1/chat/completions", json=body)
    if is_stream:
        chunks = [e["data"] for e in parse_events(response.text) if e["data"] != "[DONE]"]
        deltas = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
        assert "".join(call.get("custom", {}).get("input", "") for call in deltas) == INPUT
        assert {call["type"] for call in deltas if "id" in call} == {"custom", "function"}
        return
    message = response.json()["choices"][0]["message"]
    patch, spawn = message["tool_calls"]
    assert (patch["type"], patch["custom"]) == ("custom", {"name": "patch", "input": INPUT})
    assert json.loads(spawn["function"]["arguments"]) == {"n": 1}
    later = [*body["messages"], message, {"role": "tool", "tool_call_id": patch["id"], "content": "done"}]
    again = await served.client.post("/v1/chat/completions", json=body | {"messages": later})
    assert again.status_code == 200, again.text


async def test_a_custom_tool_can_be_chosen(served):
    choice = {"type": "custom", "name": "patch"}
    body = {"input": "x", "tools": TOOLS, "tool_choice": choice}
    assert (await served.client.post("/v1/responses", json=body)).status_code == 200


@pytest.mark.parametrize("is_stream", [False, True])
async def test_older_functions_are_called_by_their_older_names(served, is_stream):
    served.engine.script = CALL
    body = {"messages": [{"role": "user", "content": "x"}], "functions": [{"name": "patch"}, {"name": "spawn"}]}
    response = await served.client.post("/v1/chat/completions", json=body | {"stream": is_stream})
    if is_stream:
        choices = [e["data"]["choices"][0] for e in parse_events(response.text) if e["data"] != "[DONE]"]
        calls = [choice["delta"]["function_call"] for choice in choices if "function_call" in choice["delta"]]
        assert json.loads("".join(call["arguments"] for call in calls)) == {"input": INPUT}
        assert (calls[0]["name"], choices[-1]["finish_reason"]) == ("patch", "function_call")
        return
    (choice,) = response.json()["choices"]
    message = choice["message"]
    assert (choice["finish_reason"], message["function_call"]["name"]) == ("function_call", "patch")
    later = [*body["messages"], message, {"role": "function", "name": "patch", "content": "done"}]
    again = await served.client.post("/v1/chat/completions", json=body | {"messages": later})
    assert again.status_code == 200, again.text


async def test_an_older_choice_is_a_choice_of_tools(served):
    body = {"messages": [{"role": "user", "content": "x"}], "functions": [{"name": "f"}]}
    for choice, status in (({"name": "f"}, 200), ("none", 200), ({"name": "g"}, 400)):
        response = await served.client.post("/v1/chat/completions", json=body | {"function_call": choice})
        assert response.status_code == status
