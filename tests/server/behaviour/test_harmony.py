"""gpt-oss end to end: a tiny random model, grammars that force its messages, a real server, the openai package."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import openai
import pytest
from harmony_model import save_harmony_model
from pydantic import BaseModel
from serving import ServerProcess

TOWNS: dict[str, Any] = {
    "type": "object",
    "properties": {"town": {"enum": ["Rome", "Oslo"]}},
    "required": ["town"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {"name": "weather", "parameters": TOWNS, "strict": True}
TOOL: Any = {"type": "function", "function": FUNCTION}
FLAT_TOOL: Any = {"type": "function", **FUNCTION}
USER: Any = {"role": "user", "content": "How is the weather in Rome?"}
# Every channel, by special tokens; a request with tools has the server's own grammar instead.
CHANNELS = r"""start: analysis preamble final
analysis: <|channel|> "analysis" <|message|> /[a-z]{9}/ <|end|> <|start|> "assistant"
preamble: <|channel|> "commentary" <|message|> /[A-Z]{9}/ <|end|> <|start|> "assistant"
final: <|channel|> "final" <|message|> /[0-9]{9}/"""

NEUTRAL = ("--generation-config", "vllm")  # the biases below are for probabilities that nothing filters
_DELTAS = ("reasoning_text", "function_call_arguments")


class Town(BaseModel):
    """Town in an answer."""

    town: Literal["Rome", "Oslo"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("tiny-gpt-oss")
    save_harmony_model(folder)
    with ServerProcess(str(folder), "--dtype", "float32", "--served-model-name", "tiny", *NEUTRAL) as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def thinking(server: ServerProcess) -> dict[str, Any]:
    """Fields of requests that bias a random model: to analysis before calls and content, of a few letters."""

    def token_id(text: str) -> str:
        asked = {"prompt": text, "add_special_tokens": False}
        (found,) = httpx.post(f"{server.url}/tokenize", json=asked).json()["tokens"]
        return str(found)

    bias = {token_id("a"): 30.0, token_id("<|end|>"): 28.0, token_id("f"): 15.0}
    return {"logit_bias": bias, "seed": 3}


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": "tiny", "messages": [USER], "max_tokens": 400, **fields})


def prompt_of(server: ServerProcess, **fields: Any) -> str:
    """Return the rendered prompt."""
    tokens = httpx.post(f"{server.url}/tokenize", json={"messages": [USER], **fields}).json()["tokens"]
    text = httpx.post(f"{server.url}/detokenize", json={"tokens": tokens}).json()["prompt"]
    return str(text)


def test_channels_of_a_forced_answer(client: openai.OpenAI) -> None:
    forced: Any = {"extra_body": {"structured_outputs": {"grammar": CHANNELS}}}
    message = chat(client, **forced).choices[0].message
    assert (len(message.reasoning_content), message.reasoning_content.islower()) == (9, True)
    assert (message.content[:9].isupper(), message.content[9:].isdigit(), len(message.content)) == (True, True, 18)
    deltas = [chunk.choices[0].delta for chunk in chat(client, stream=True, temperature=0, **forced)]
    whole = chat(client, temperature=0, **forced).choices[0].message
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == whole.reasoning_content
    assert "".join(delta.content or "" for delta in deltas) == whole.content


def test_forced_call_after_reasoning_and_its_result(client: openai.OpenAI, thinking: dict[str, Any]) -> None:
    # openai-agents sends the format of its last answer with each call, too.
    schema = {"type": "json_schema", "json_schema": {"name": "town", "schema": TOWNS, "strict": True}}
    answer = chat(client, tools=[TOOL], tool_choice="required", response_format=schema, **thinking)
    (choice,) = answer.choices
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert json.loads(call.function.arguments)["town"] in ("Rome", "Oslo")
    assert {*choice.message.reasoning_content} == {"a"}
    assert answer.usage.completion_tokens_details.reasoning_tokens >= len(choice.message.reasoning_content)
    result = {"role": "tool", "tool_call_id": call.id, "content": "It rains."}
    told = client.chat.completions.parse(
        model="tiny",
        messages=[USER, choice.message, result],
        tools=[TOOL],
        response_format=Town,
        max_tokens=400,
        **thinking,
    )
    assert isinstance(told.choices[0].message.parsed, Town)
    assert told.choices[0].message.tool_calls in (None, [])


def test_streamed_call_after_reasoning(client: openai.OpenAI, thinking: dict[str, Any]) -> None:
    asked = {"model": "tiny", "messages": [USER], "tools": [TOOL], "tool_choice": "required", "max_tokens": 400}
    reasoning, kinds = "", []
    with client.chat.completions.stream(**asked, **thinking) as stream:
        for event in stream:
            kinds.append(event.type)
            if event.type == "chunk":
                reasoning += getattr(event.chunk.choices[0].delta, "reasoning_content", None) or ""
        message = stream.get_final_completion().choices[0].message
    whole = chat(client, tools=[TOOL], tool_choice="required", **thinking).choices[0].message
    assert kinds.count("tool_calls.function.arguments.delta") > 3
    assert (message.tool_calls or [])[0].function.arguments == whole.tool_calls[0].function.arguments
    assert reasoning == whole.reasoning_content


def test_responses_call_its_result_and_the_answer(client: openai.OpenAI, thinking: dict[str, Any]) -> None:
    asked: Any = {"model": "tiny", "tools": [FLAT_TOOL], "max_output_tokens": 400, "extra_body": thinking}
    first = client.responses.create(input="Rome?", tool_choice="required", **asked)
    reasoning, call = first.output
    assert (reasoning.type, call.type, first.output_text) == ("reasoning", "function_call", "")
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "It rains."}
    final = client.responses.parse(input=[result], previous_response_id=first.id, text_format=Town, **asked)
    assert isinstance(final.output_parsed, Town)
    with client.responses.stream(input="Rome?", tool_choice="required", **asked) as stream:
        events = list(stream)
    deltas = {kind: [e.delta for e in events if e.type == f"response.{kind}.delta"] for kind in _DELTAS}
    assert "".join(deltas["reasoning_text"]) == "".join(part.text for part in reasoning.content)
    assert "".join(deltas["function_call_arguments"]) == call.arguments
    assert len(deltas["function_call_arguments"]) > 3


def test_prompts_have_the_effort_the_tools_and_reasoning_before_calls(server: ServerProcess) -> None:
    assert "Reasoning: high" in prompt_of(server, reasoning_effort="high")
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Rome"}'}}
    turns = [
        USER,
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "It rains."},
    ]
    prompt = prompt_of(server, messages=turns, tools=[TOOL])
    assert "Reasoning: medium" in prompt
    assert "type weather = (_: {" in prompt
    assert prompt.endswith(
        "<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>"
        '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"town": "Rome"}<|call|>'
        "<|start|>functions.weather to=assistant<|channel|>commentary<|message|>It rains.<|end|><|start|>assistant"
    )


def test_calls_on_the_other_apis(server: ServerProcess) -> None:
    tool = {"name": "weather", "input_schema": TOWNS}
    asked = {"messages": [USER], "max_tokens": 2000, "tools": [tool], "tool_choice": {"type": "any"}}
    answer = httpx.post(f"{server.url}/v1/messages", json={"model": "tiny", **asked}, timeout=60).json()
    (call,) = (block for block in answer["content"] if block["type"] == "tool_use")
    assert call["input"]["town"] in ("Rome", "Oslo")
    body = {"model": "tiny", "messages": [USER], "format": TOWNS, "stream": False}
    message = httpx.post(f"{server.url}/api/chat", json=body, timeout=60).json()["message"]
    assert json.loads(message["content"])["town"] in ("Rome", "Oslo")
