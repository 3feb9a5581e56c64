"""Tools and reasoning on /v1/chat/completions, with scripted answers, as the `openai` package sends and reads them."""

import asyncio
import dataclasses
import json

import openai
import pytest
from serving import parse_events

from splitfuse.engine.language.chat.template import ChatTemplate
from splitfuse.server.api.chat.answer_format import AnswerFormat
from splitfuse.server.settings import Settings

MODEL = "splitfuse-demo-5m"
MESSAGES = [{"role": "user", "content": "Weather in Rome and Oslo?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a town",
            "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
            "strict": True,
        },
    },
    {"type": "function", "function": {"name": "time"}},
]
HERMES = """{% for t in tools or [] %}{{ t | tojson }} {% endfor %}
{% for m in messages %}{{ m.role }}: {{ m.content }}
{% for c in m.tool_calls or [] %}{{ '<tool_call>' ~ (c.function | tojson) ~ '</tool_call>' }}{% endfor %}
{{ '.' }}{% endfor %}
{% if add_generation_prompt %}assistant: {{ '<think>' if think }}{% endif %}"""
ROME, OSLO = '{"town": "Rome"}', '{"town": "Osl\\u00f6"}'
TWO_CALLS = [
    *("Let me ", "look.\n", "\n<tool", '_call>\n{"na', 'me": "weather', '", "arguments": ', '{"town"', ': "Rome"}'),
    *("}", "\n</tool_call>", "\n<tool_call>\n", '{"name": "weather", "arguments": ', OSLO[:9], OSLO[9:]),
    *("}\n</tool_call>", ""),
]


@pytest.fixture
def client(served, client):
    served.engine.tokenizer.chat_template = ChatTemplate(HERMES, special_tokens={})
    return client


def prompt_of(served, **options):
    return served.engine.tokenizer.chat_template.render(MESSAGES, **options)


async def joined(stream):
    """Return a streamed answer put together as a client does."""
    message = {"content": "", "reasoning_content": "", "calls": []}
    reason = None
    async for chunk in stream:
        (choice,) = chunk.choices
        delta = choice.delta
        message["content"] += delta.content or ""
        message["reasoning_content"] += getattr(delta, "reasoning_content", None) or ""
        for call in delta.tool_calls or []:
            if call.index == len(message["calls"]):
                assert call.id.startswith("call_")
                assert call.type == "function"
                assert call.function.name
                message["calls"].append([call.function.name, ""])
            else:
                assert call.index == len(message["calls"]) - 1, "calls come one after the other"
                assert call.id is call.type is call.function.name is None
            message["calls"][-1][1] += call.function.arguments
        reason = choice.finish_reason or reason
    return message, reason


async def test_calls_are_found_in_a_whole_answer(client, served):
    served.engine.script = TWO_CALLS
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS)
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me look.")
    calls = choice.message.tool_calls
    assert [(call.type, call.function.name, call.function.arguments) for call in calls] == [
        ("function", "weather", ROME),
        ("function", "weather", OSLO),
    ]
    assert len({call.id for call in calls}) == 2
    assert json.loads(calls[1].function.arguments) == {"town": "Oslö"}


async def test_calls_are_streamed_as_they_come(client, served):
    served.engine.script = TWO_CALLS
    stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS, stream=True)
    message, reason = await joined(stream)
    assert message["content"] == "Let me look."
    assert (message["calls"], reason) == ([["weather", ROME], ["weather", OSLO]], "tool_calls")


async def test_the_arguments_do_not_wait_for_their_end(client, served):
    served.engine.script = ['<tool_call>{"name": "time"', ', "arguments": {"a": ', "1}", "}</tool_call>"]
    response = await served.client.post(
        "/v1/chat/completions", json={"messages": MESSAGES, "tools": TOOLS, "stream": True}
    )
    deltas = [event["data"]["choices"][0]["delta"] for event in parse_events(response.text)[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    ((call,),) = [[*delta["tool_calls"]] for delta in deltas[1:2]]
    assert call == {
        "index": 0,
        "id": call["id"],
        "type": "function",
        "function": {"name": "time", "arguments": '{"a": '},
    }
    assert deltas[2:] == [{"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}, {}]


async def test_tools_stand_in_the_prompt_and_results_come_back(client, served):
    served.engine.script = ["Rain."]
    call = {"id": "call_7", "type": "function", "function": {"name": "weather", "arguments": ROME}}
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_7", "content": [{"type": "text", "text": "wet"}]},
    ]
    answer = await client.chat.completions.create(model=MODEL, messages=turns, tools=TOOLS)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Rain.", "stop")
    assert answer.choices[0].message.tool_calls is None
    prompt = (await served.client.post("/tokenize", json={"messages": turns, "tools": TOOLS})).json()["tokens"]
    assert len(prompt) == answer.usage.prompt_tokens
    text = bytes(prompt).decode()
    assert '<tool_call>{"name": "weather", "arguments": {"town": "Rome"}}</tool_call>.tool: wet\n.assistant: ' in text
    assert '"name": "time"' in text
    assert "strict" not in text


async def test_tools_that_must_not_be_called_are_not_shown(client, served):
    served.engine.script = TWO_CALLS
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice="none")
    assert answer.choices[0].message.content == "".join(TWO_CALLS)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == len(prompt_of(served))


async def test_one_call_at_a_time(client, served):
    served.engine.script = TWO_CALLS
    for is_stream in (False, True):
        answer = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=TOOLS, parallel_tool_calls=False, stream=is_stream
        )
        if is_stream:
            assert (await joined(answer))[0]["calls"] == [["weather", ROME]]
        else:
            assert len(answer.choices[0].message.tool_calls) == 1


async def test_an_answer_that_is_cut_off_says_so(client, served):
    served.engine.script = TWO_CALLS
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS, max_tokens=8)
    (choice,) = answer.choices
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls[0].function.arguments == '{"town": "Rome"}'
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS, max_tokens=5)
    assert answer.choices[0].message.content == "Let me look.", "no half of a call"


async def test_only_tools_that_may_be_called_are_shown(client, served):
    served.engine.script = TWO_CALLS
    now = {"type": "function", "function": {"name": "now"}}
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "now"}}]}
    for choice, shown in (("auto", [*TOOLS, now]), ({"type": "allowed_tools", "allowed_tools": allowed}, [now])):
        answer = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=[*TOOLS, now], tool_choice=choice
        )
        alone = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=shown)
        assert answer.usage.prompt_tokens == alone.usage.prompt_tokens


async def test_every_choice_has_calls_of_its_own(client, served):
    served.engine.script = TWO_CALLS
    stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS, stream=True, n=2)
    ids, names = set(), {0: [], 1: []}
    async for chunk in stream:
        for call in chunk.choices[0].delta.tool_calls or []:
            if call.id:
                ids.add(call.id)
                names[chunk.choices[0].index].append(call.index)
    assert names == {0: [0, 1], 1: [0, 1]}
    assert len(ids) == 4


async def test_calls_or_an_answer_in_the_given_format(client, served):
    """One grammar enforces both: an answer that is no call has the format."""
    served.engine.script = ['{"a": 1}']
    served.engine.hold()
    asked = {"messages": MESSAGES, "tools": TOOLS, "response_format": {"type": "json_object"}}
    task = asyncio.create_task(served.client.post("/v1/chat/completions", json=asked))
    await served.engine.submitted.wait()
    (handle,) = served.engine.handles.values()
    grammar = handle.params.structured_outputs.grammar
    assert grammar.startswith('start: (("<think>") thought gap)? (calls | content)')
    await served.engine.allow()
    assert (await task).json()["choices"][0]["message"]["content"] == '{"a": 1}'


async def test_logprobs_of_text_that_is_held_back_are_not_lost(client, served):
    served.engine.script = TWO_CALLS
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, tools=TOOLS, stream=True, logprobs=True
    )
    num_logprobs = 0
    async for chunk in stream:
        num_logprobs += len(chunk.choices[0].logprobs.content) if chunk.choices[0].logprobs else 0
    assert num_logprobs == len(TWO_CALLS)


THOUGHT = ["<thi", "nk>\n", "Hm", ".\n\n", "Yes.", "\n</think>", "\n\n", "It is ", "wet."]


@pytest.mark.parametrize("opened_by", ["the model", "the template"])
async def test_reasoning_stands_apart(client, served, opened_by):
    served.engine.script = THOUGHT if opened_by == "the model" else THOUGHT[2:]
    kwargs = {"think": opened_by == "the template"}
    asked = {"model": MODEL, "messages": MESSAGES, "extra_body": {"chat_template_kwargs": kwargs}}
    answer = await client.chat.completions.create(**asked)
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("Hm.\n\nYes.", "It is wet.")
    num_reasoning = answer.usage.completion_tokens_details.reasoning_tokens
    assert num_reasoning == (4 if opened_by == "the model" else 3)
    streamed, reason = await joined(await client.chat.completions.create(**asked, stream=True))
    assert streamed == {"content": "It is wet.", "reasoning_content": "Hm.\n\nYes.", "calls": []}
    assert reason == "stop"


async def test_reasoning_goes_before_calls_and_alone_has_no_content(client, served):
    served.engine.script = ["<think>Look", " up</think>", *TWO_CALLS]
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS)
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content, len(message.tool_calls)) == ("Look up", "Let me look.", 2)
    served.engine.script = THOUGHT
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=3)
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content, answer.choices[0].finish_reason) == ("Hm", None, "length")


async def test_an_answer_without_reasoning_stays_as_it_is(client, served):
    served.engine.script = ["\n <", "b> ", "\n"]
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].message.content == "\n <b> \n"
    assert not hasattr(answer.choices[0].message, "reasoning_content")
    streamed, _ = await joined(await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True))
    assert streamed["content"] == "\n <b> \n"


async def test_a_message_is_gone_on_with(client, served):
    served.engine.script = ["x"]
    turns = [*MESSAGES, {"role": "assistant", "content": "It <think>was"}]
    options = {"continue_final_message": True}
    answer = await client.chat.completions.create(model=MODEL, messages=turns, extra_body=options)
    tokens = (await served.client.post("/tokenize", json={"messages": turns, **options})).json()["tokens"]
    assert bytes(tokens).decode().endswith("assistant: It <think>was")
    assert answer.usage.prompt_tokens == len(tokens)
    assert answer.choices[0].message.reasoning_content == "x", "the message ended within its reasoning"
    plain = (await served.client.post("/tokenize", json={"messages": turns, "add_generation_prompt": False})).json()
    assert bytes(plain["tokens"]).decode().endswith("assistant: It <think>was\n.")


@pytest.mark.parametrize(("begun", "status"), [('{"a":', 400), ("[", 400), ("Here is the JSON: ", 200)])
async def test_a_json_value_is_not_begun_twice(served, begun, status):
    body = {"messages": [*MESSAGES, {"role": "assistant", "content": begun}], "continue_final_message": True}
    answer = await served.client.post("/v1/chat/completions", json={**body, "response_format": {"type": "json_object"}})
    assert answer.status_code == status, answer.text
    assert (await served.client.post("/v1/chat/completions", json=body)).status_code == 200


@pytest.mark.parametrize("settings", [Settings(tool_call_parser="llama3_json", reasoning_parser="none")])
async def test_the_parsers_can_be_named(client, served):
    served.engine.script = ['{"name": "weather", ', '"parameters": ', ROME, "}; ", '{"name": "time"}']
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS)
    calls = answer.choices[0].message.tool_calls
    assert [(c.function.name, c.function.arguments) for c in calls] == [("weather", ROME), ("time", "{}")]
    served.engine.script = ['{"name": "Bob"}']
    stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS, stream=True)
    message, reason = await joined(stream)
    assert (message["content"], reason) == ('{"name": "Bob"}', "stop")
    served.engine.script = THOUGHT
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].message.content == "".join(THOUGHT)


@pytest.mark.parametrize("settings", [Settings(tool_call_parser="none")])
async def test_calls_can_be_left_in_the_text(client, served):
    served.engine.script = TWO_CALLS
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS)
    assert answer.choices[0].message.content == "".join(TWO_CALLS)
    assert answer.usage.prompt_tokens == len(prompt_of(served, tools=json.loads(json.dumps(TOOLS)))) - len(
        ', "strict": true'
    )


@pytest.mark.parametrize("settings", [Settings(), Settings(tool_call_parser="hermes")])
async def test_a_form_that_cannot_be_derived_is_refused_by_name(client, served, settings):
    joined = "c.function.name ~ ': ' ~ (c.function.arguments.values() | join('&'))"  # values without their keys
    source = HERMES.replace("(c.function | tojson)", joined)
    served.engine.tokenizer.chat_template = ChatTemplate(source, special_tokens={})
    served.engine.script = TWO_CALLS
    answer = await served.client.post("/v1/chat/completions", json={"messages": MESSAGES, "tools": TOOLS})
    if settings.tool_call_parser == "hermes":
        assert len(answer.json()["choices"][0]["message"]["tool_calls"]) == 2
        return
    assert answer.status_code == 400
    assert "cannot be derived from the chat template" in answer.json()["error"]["message"]
    assert "--tool-call-parser NAME" in answer.json()["error"]["message"]
    for body in ({"messages": MESSAGES}, {"messages": MESSAGES, "tools": TOOLS, "tool_choice": "none"}):
        assert (await served.client.post("/v1/chat/completions", json=body)).status_code == 200


PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
ANSWERED = [
    *MESSAGES,
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "weather", "arguments": ROME}}]},
    {"role": "tool", "tool_call_id": "call_7", "content": "wet"},
    {"role": "tool", "tool_call_id": "call_8", "content": "dry"},
]


async def prompt_text(served, **body):
    tokens = (await served.client.post("/tokenize", json={"messages": MESSAGES, **body})).json()["tokens"]
    return bytes(tokens).decode()


async def test_a_model_whose_template_shows_no_calls_is_told_of_the_tools(client, served):
    served.engine.tokenizer.chat_template = ChatTemplate(PLAIN, special_tokens={})
    served.engine.script = TWO_CALLS
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS)
    assert [call.function.arguments for call in answer.choices[0].message.tool_calls] == [ROME, OSLO]
    answer = await served.client.post("/v1/chat/completions", json={"messages": ANSWERED, "tools": TOOLS})
    assert answer.headers["x-in-words"] == "tools,calls"
    answer = await served.client.post("/v1/chat/completions", json={"messages": MESSAGES})
    assert "x-in-words" not in answer.headers
    text = await prompt_text(served, tools=TOOLS)
    assert text.startswith("system: You can call these functions:\n")
    assert json.dumps({key: value for key, value in TOOLS[0]["function"].items() if key != "strict"}) in text
    with_system = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    assert (await prompt_text(served, messages=with_system, tools=TOOLS)).startswith("system: Be brief.\n\nYou can")
    assert await prompt_text(served, tools=TOOLS, tool_choice="none") == await prompt_text(served)


@pytest.mark.parametrize("tools", [{"tools": TOOLS}, {}])
async def test_earlier_calls_are_told_in_the_same_style(served, tools):
    served.engine.tokenizer.chat_template = ChatTemplate(PLAIN, special_tokens={})
    text = await prompt_text(served, messages=[*ANSWERED, {"role": "user", "content": "So?"}], **tools)
    assert text.endswith(
        'assistant: <tool_call>\n{"name": "weather", "arguments": {"town": "Rome"}}\n</tool_call>\n'
        "user: <tool_response>\nwet\n</tool_response>\n<tool_response>\ndry\n</tool_response>\nSo?\nassistant: "
    )


async def test_tools_go_into_the_first_message_where_the_template_takes_no_system_message(served):
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    served.engine.tokenizer.chat_template = ChatTemplate(refuses + PLAIN, special_tokens={})
    text = await prompt_text(served, tools=TOOLS)
    assert text.startswith("user: You can call these functions:\n")
    assert text.endswith("</tool_call>\n\nWeather in Rome and Oslo?\nassistant: ")
    with_system = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    assert (await prompt_text(served, messages=with_system, tools=TOOLS)).startswith("user: Be brief.\n\nYou can call")


async def params_of(served, **body):
    """Return the parameters that the engine gets for this body."""
    served.engine.script = ["x"]
    served.engine.hold()
    body = {"messages": MESSAGES, "tools": TOOLS, **body}
    task = asyncio.create_task(served.client.post("/v1/chat/completions", json=body))
    await served.engine.submitted.wait()
    (handle,) = served.engine.handles.values()
    await served.engine.allow()
    assert (await task).status_code == 200
    return handle.params


async def test_calls_are_checked_where_the_model_was_told_of_them(served):
    served.engine.tokenizer.chat_template = ChatTemplate(PLAIN, special_tokens={})
    outputs = (await params_of(served)).structured_outputs
    assert outputs.is_optional
    assert outputs.grammar.startswith("start: (before calls)* TEXT\n")
    assert "\nbefore[suffix" in outputs.grammar
    assert outputs.grammar.count('"additionalProperties": false') == 2


@pytest.mark.parametrize("is_strict", [True, False])
async def test_calls_of_strict_tools_are_checked_in_the_templates_own_style(served, client, is_strict):
    tools = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": is_strict}}, TOOLS[1]]
    outputs = (await params_of(served, tools=tools)).structured_outputs
    if not is_strict:
        assert outputs is None
        return
    assert outputs.is_optional
    assert outputs.grammar.count('"additionalProperties": false') == 1, "the other tool's arguments are any object"


FENCED = '```json\n{"name": "weather", "arguments": %s}\n```\n'


@pytest.mark.parametrize(("second", "num_calls"), [(ROME, 2), ('{"town": 1}', 1), ('{"town": "Rome", "why": 1}', 1)])
async def test_a_fence_is_a_call_of_a_strict_tool_if_its_arguments_fit(served, client, second, num_calls):
    served.engine.script = [FENCED % ROME, *(FENCED % second)]
    asked = {"model": MODEL, "messages": MESSAGES, "tools": TOOLS}
    message = (await client.chat.completions.create(**asked)).choices[0].message
    assert [call.function.arguments for call in message.tool_calls] == [ROME, second][:num_calls]
    assert (second in (message.content or "")) == (num_calls == 1)
    streamed, _ = await joined(await client.chat.completions.create(**asked, stream=True))
    assert streamed["calls"] == [["weather", call.function.arguments] for call in message.tool_calls]


@pytest.mark.parametrize(
    ("path", "body", "mark"),
    [
        ("/v1/responses", {"input": "?", "tools": [{"type": "function", **TOOLS[0]["function"]}]}, '"function_call"'),
        ("/api/chat", {"messages": MESSAGES, "tools": TOOLS, "stream": False}, '"arguments"'),
        (
            "/v1/messages",
            {"messages": MESSAGES, "max_tokens": 99, "tools": [{"name": "weather", "input_schema": {}}]},
            '"tool_use","id"',
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_two_calls_in_a_fence_come_by_every_dialect(served, path, body, mark):
    served.engine.tokenizer.chat_template = ChatTemplate(HERMES, special_tokens={})
    one = f'{{"name": "weather", "arguments": {ROME}}}'
    served.engine.script = [f"```json\n[{one}, ", f"{one}]\n```"]
    text = (await served.client.post(path, json={"model": MODEL, **body})).text
    assert text.replace(": ", ":").count(mark) == 2, text
    assert "```" not in text


async def test_reasoning_has_both_names_and_can_be_left_out(client, served):
    served.engine.script = THOUGHT
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].message.reasoning == answer.choices[0].message.reasoning_content == "Hm.\n\nYes."
    asked = {"model": MODEL, "messages": MESSAGES, "extra_body": {"include_reasoning": False}}
    answer = await client.chat.completions.create(**asked)
    message = answer.choices[0].message
    assert message.content == "It is wet."
    assert not {"reasoning", "reasoning_content"} & message.model_dump().keys()
    streamed, _ = await joined(await client.chat.completions.create(**asked, stream=True))
    assert (streamed["content"], streamed["reasoning_content"]) == ("It is wet.", "")


MISTRAL = """{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}[TOOL_CALLS]
{{- c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"""


async def test_mistrals_calls_are_found_in_the_template(client, served):
    served.engine.tokenizer.chat_template = ChatTemplate(MISTRAL, special_tokens={})
    served.engine.script = ["[TOOL_CALLS]", "wea", "ther", "[ARGS]", ROME]
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS[1:])
    assert answer.choices[0].message.tool_calls[0].function.arguments == ROME


async def test_special_tokens_are_kept_and_forced_where_they_tell_the_calls(served):
    served.engine.tokenizer.chat_template = ChatTemplate(MISTRAL, special_tokens={})
    served.engine.tokenizer.special_ids = lambda texts: {text: 200 + len(text) for text in texts}
    params = await params_of(served)
    assert not params.skip_special_tokens
    assert "before: TEXT <[212]>" in params.structured_outputs.grammar


async def test_reasoning_effort_reaches_the_template(client, served):
    source = "{{ 'x' * {'low': 1, 'high': 3}.get(reasoning_effort, 2) }}"
    served.engine.tokenizer.chat_template = ChatTemplate(source, special_tokens={})
    served.engine.script = ["ok"]
    for asked, expected in (({"reasoning_effort": "low"}, 1), ({"reasoning_effort": "high"}, 3), ({}, 2)):
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, **asked)
        assert answer.usage.prompt_tokens == expected


async def test_other_reasoning_is_found_in_the_template(client, served):
    for template, script in [
        ("Here is my thought process:", ["Here is my thought", " process: Hm. Here", " is my response: It is wet."]),
        ("[THINK]", ["[THI", "NK]Hm.[/TH", "INK] It is wet."]),
    ]:
        served.engine.tokenizer.chat_template = ChatTemplate(template, special_tokens={})
        served.engine.script = script
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
        assert (answer.choices[0].message.reasoning, answer.choices[0].message.content) == ("Hm.", "It is wet.")


@pytest.mark.parametrize("settings", [Settings(reasoning_parser="deepseek_r1")])
async def test_deepseek_r1_begins_with_reasoning(client, served):
    served.engine.script = ["Hm.", "</think>", "It is wet."]
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert (answer.choices[0].message.reasoning, answer.choices[0].message.content) == ("Hm.", "It is wet.")


async def test_the_templates_refusal_reaches_the_user(client, served):
    served.engine.tokenizer.chat_template = ChatTemplate(
        "{{ raise_exception('Only one message, please') }}", special_tokens={}
    )
    with pytest.raises(openai.BadRequestError, match="Only one message, please") as info:
        await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert info.value.param == "messages"


async def test_arguments_with_lone_surrogates_are_refused(served, client):
    call = {"function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}
    turns = [*MESSAGES, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "x"}]
    response = await served.client.post("/v1/chat/completions", json={"messages": turns})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")


async def test_variables_reach_the_template(client, served):
    served.engine.tokenizer.chat_template = ChatTemplate("{{ mood }}{{ reasoning_effort }}{{ n }}", special_tokens={})
    body = {"messages": MESSAGES, "chat_template_kwargs": {"mood": "gay", "n": None}, "reasoning_effort": "low"}
    tokens = (await served.client.post("/tokenize", json=body)).json()["tokens"]
    assert bytes(tokens) == b"gaylowNone"


def test_a_format_that_was_kept_is_the_same_again():
    answer = AnswerFormat(style="mistral", tools=TOOLS, checked_names=["time"], special_ids={"[ARGS]": 5})
    assert AnswerFormat.read(json.loads(json.dumps(dataclasses.asdict(answer)))) == answer
    assert AnswerFormat.read({"style": None, "thinks": True}) == AnswerFormat(reasoning="think")
    assert AnswerFormat.read({"style": None, "thinks": False}) == AnswerFormat()
