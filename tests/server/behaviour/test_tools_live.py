"""Calls that the demo model must or may make, under a grammar, as the `openai` package sends and reads them."""

import json

import pytest
from jsonschema import validate
from pydantic import BaseModel

MODEL = "splitfuse-demo-5m"
MESSAGES = [{"role": "user", "content": "How is the weather in Rome?"}]
PARAMETERS = {
    "type": "object",
    "properties": {
        "town": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["town", "days", "unit"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
SCHEMAS = {"weather": PARAMETERS, "now": {"type": "object", "additionalProperties": False}}


def check(name, arguments):
    validate(json.loads(arguments), SCHEMAS[name])


async def test_required(sdk):
    answer = await sdk.chat.completions.create(
        model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice="required", n=6, seed=1, max_tokens=200
    )
    names = set()
    for choice in answer.choices:
        assert choice.message.content is None
        assert choice.message.tool_calls
        if choice.finish_reason == "length":
            continue
        assert choice.finish_reason == "tool_calls"
        for call in choice.message.tool_calls:
            check(call.function.name, call.function.arguments)
            names.add(call.function.name)
    assert names == set(SCHEMAS)


@pytest.mark.parametrize("name", SCHEMAS)
async def test_named_whole_and_streamed(sdk, name):
    asked = {
        "model": MODEL,
        "messages": MESSAGES,
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": name}},
        "seed": 4,
        "max_tokens": 200,
    }
    answer = await sdk.chat.completions.create(**asked)
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, answer.choices[0].finish_reason) == (name, "tool_calls")
    check(name, call.function.arguments)
    async with sdk.chat.completions.stream(**asked) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    (streamed,) = final.choices[0].message.tool_calls
    assert (streamed.function.name, streamed.function.arguments) == (name, call.function.arguments)


@pytest.mark.parametrize("name", SCHEMAS)
async def test_required_among_the_allowed(sdk, name):
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": name}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    answer = await sdk.chat.completions.create(
        model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice=choice, n=6, seed=3, max_tokens=200
    )
    calls = [call for one in answer.choices for call in one.message.tool_calls]
    assert {call.function.name for call in calls} == {name}
    response = await sdk.responses.create(
        model=MODEL,
        input="x",
        tools=FLAT,
        tool_choice={"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": name}]},
        parallel_tool_calls=False,
        max_output_tokens=200,
    )
    assert [item.name for item in response.output] == [name]


async def test_one_call_and_no_more(sdk):
    answer = await sdk.chat.completions.create(
        model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, n=8, seed=2
    )
    assert [len(choice.message.tool_calls) for choice in answer.choices] == [1] * 8


async def test_a_result_comes_back(sdk):
    first = await sdk.chat.completions.create(
        model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=200
    )
    message = first.choices[0].message
    call = message.tool_calls[0]
    turns = [*MESSAGES, message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    second = await sdk.chat.completions.create(
        model=MODEL, messages=turns, max_tokens=8, tools=TOOLS, tool_choice="none"
    )
    assert second.choices[0].message.content
    assert second.choices[0].message.tool_calls is None


async def test_what_a_model_may_call_whole_and_streamed(sdk):
    """The demo hardly ever calls by itself; that it may, and that both answers are the same, shows all the same."""
    asked = {"model": MODEL, "messages": MESSAGES, "tools": TOOLS, "seed": 3, "max_tokens": 60}
    answer = await sdk.chat.completions.create(**asked)
    for call in answer.choices[0].message.tool_calls or []:
        check(call.function.name, call.function.arguments)
    async with sdk.chat.completions.stream(**asked) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == answer.choices[0].message.content
    assert final.choices[0].finish_reason == answer.choices[0].finish_reason


async def test_an_agent_goes_on_after_a_call(sdk):
    """Agents' frameworks require a call, send its result, then leave the choice to the model."""
    asked = {"model": MODEL, "tools": TOOLS, "parallel_tool_calls": False, "max_tokens": 80}
    asked |= {"seed": 2, "temperature": 1}
    turns = list(MESSAGES)
    for choice in ("required", "auto", {"type": "function", "function": {"name": "weather"}}, "auto"):
        answer = await sdk.chat.completions.create(**asked, messages=turns, tool_choice=choice)
        (choice_made,) = answer.choices
        message = choice_made.message
        assert choice_made.finish_reason in ("stop", "length", "tool_calls")
        assert bool(message.tool_calls) or choice == "auto"
        turns.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or []:
            check(call.function.name, call.function.arguments)
            turns.append({"role": "tool", "tool_call_id": call.id, "content": "rain, 12 C"})


async def test_tools_whose_schemas_no_grammar_takes_can_be_offered(sdk):
    odd = {"type": "function", "function": {"name": "f", "parameters": {"type": "no such type"}}}
    answer = await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, tools=[odd], max_tokens=4)
    assert answer.choices[0].finish_reason


async def test_calls_as_items_of_a_response(sdk):
    asked = {"model": MODEL, "input": "How is the weather?", "tools": FLAT, "max_output_tokens": 200, "temperature": 1}
    response = await sdk.responses.create(**asked, tool_choice="required", parallel_tool_calls=False)
    (item,) = response.output
    assert (item.type, response.status) == ("function_call", "completed")
    check(item.name, item.arguments)
    async with sdk.responses.stream(**asked, tool_choice={"type": "function", "name": "weather"}) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    check("weather", final.output[0].arguments)
    result = {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
    going_on = await sdk.responses.create(
        model=MODEL, previous_response_id=response.id, input=[result], max_output_tokens=8
    )
    assert going_on.output_text


async def test_a_response_goes_on_after_a_call(sdk):
    asked = {"model": MODEL, "tools": FLAT, "max_output_tokens": 80, "parallel_tool_calls": False}
    first = await sdk.responses.create(**asked, input="How is the weather?", tool_choice="required")
    result = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "rain"}
    async with sdk.responses.stream(**asked, input=[result], previous_response_id=first.id) as stream:
        events = [event async for event in stream]
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert events[-1].response.output
    for item in events[-1].response.output:
        assert item.type == "message" or json.loads(item.arguments) is not None


class Town(BaseModel):
    name: str
    has_sea: bool


async def test_a_response_in_a_given_format(sdk):
    response = await sdk.responses.parse(
        model=MODEL, input="A town?", text_format=Town, max_output_tokens=400, extra_body={"seed": 5}
    )
    assert response.status == "completed"
    assert isinstance(response.output_parsed, Town)
    assert response.text.format.type == "json_schema"
    plain = await sdk.responses.create(
        model=MODEL, input="A town?", text={"format": {"type": "json_object"}}, max_output_tokens=5
    )
    assert plain.output_text.startswith("{")


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("tools", {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "no such type"}}}]}),
        ("tool_choice", {"structured_outputs": {"regex": "a+"}, "tools": TOOLS}),
    ],
)
async def test_what_cannot_be_enforced_is_the_requests_fault(live, param, fields):
    body = {"messages": MESSAGES, "tool_choice": "required", "max_tokens": 5, **fields}
    response = await live.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


async def test_a_schema_that_is_no_schema_in_a_response(live):
    body = {"input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "no such type"}}}}
    response = await live.post("/v1/responses", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "text.format.schema"), response.text
    tools = [{"type": "function", "name": "f", "parameters": {"type": "no such type"}}]
    response = await live.post("/v1/responses", json={"input": "x", "tools": tools, "tool_choice": "required"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools"), response.text
