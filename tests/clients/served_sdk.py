"""Packages of frameworks on the models themselves: a text, a stream, a structure, a tool, an error of each.

`SPLITFUSE_CLIENT=litellm python tests/clients/served_sdk.py URL` runs one. A function per client returns its checks by
name. It imports its packages itself, because the others are not installed. Grammars force what a toy gets wrong.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal

from checks import ANSWER, QUESTION, TOWN_SCHEMA, At, each, raised, run

Checks = Mapping[str, Callable[[], None]]
Towns = Literal["Rome", "Oslo"]
USER: Any = {"role": "user", "content": QUESTION}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": TOWN_SCHEMA}}
FEW: dict[str, Any] = {"max_tokens": 24, "temperature": 0}
MORE: dict[str, Any] = {"max_tokens": 80, "temperature": 0}


def weather(town: Towns) -> str:
    """Tell the weather in a town.

    Args:
        town: Its name.
    """
    return ANSWER


def town_model() -> Any:
    """Return a pydantic model; all of these clients bring pydantic."""
    from pydantic import create_model

    return create_model("Town", __doc__="A town.", town=(Towns, ...))


def is_truthy(call: Callable[[], object]) -> Callable[[], None]:
    """Return the check that `call` returns something."""

    def check() -> None:
        assert call()

    return check


def _assert(value: object) -> None:
    assert value


def huggingface_hub(at: At) -> Checks:
    from huggingface_hub import InferenceClient
    from huggingface_hub.errors import HfHubHTTPError

    client = InferenceClient(base_url=at.url, api_key=at.key)

    def chat(**fields: Any) -> Any:
        return client.chat_completion([USER], **{"model": at.name, **MORE, **fields})

    def stream() -> None:
        parts = chat(stream=True, **FEW)
        assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == text(**FEW)

    def text(**fields: Any) -> str:
        return str(chat(**fields).choices[0].message.content)

    def response_format() -> None:
        form = {"type": "json_schema", "json_schema": {"name": "town", "schema": TOWN_SCHEMA, "strict": True}}
        assert set(json.loads(text(response_format=form))) == {"town", "unit"}

    def tool() -> None:
        (call, *_) = chat(tools=[TOOL], tool_choice="required").choices[0].message.tool_calls
        assert set(json.loads(call.function.arguments)) == {"town", "unit"}

    def errors() -> None:
        assert raised(HfHubHTTPError, lambda: chat(model="another")).response.status_code == 404

    return {
        "chat": is_truthy(lambda: text(**FEW)),
        "stream": stream,
        "response_format": response_format,
        "tool": tool,
        "errors": errors,
    }


def langchain(at: At) -> Checks:
    import openai
    from langchain.agents import create_agent
    from langchain_core.messages import ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI, OpenAI

    place: dict[str, Any] = {"base_url": at.v1, "api_key": at.key, "max_retries": 0}
    tools: list[Any] = [tool(weather)]

    def chat(**fields: Any) -> Any:
        return ChatOpenAI(**{"model": at.name, **MORE, **place, **fields})

    def stream_equals_invoke() -> None:
        parts = list(chat(stream_usage=True, **FEW).stream(QUESTION))
        assert "".join(part.content for part in parts) == chat(**FEW).invoke(QUESTION).content
        assert any(part.usage_metadata for part in parts)

    def structured_output(method: str) -> None:
        town = town_model()
        assert isinstance(chat().with_structured_output(town, method=method).invoke(QUESTION), town)

    def tool_and_its_result() -> None:
        call = chat().bind_tools(tools, tool_choice="any", strict=True).invoke(QUESTION)
        results = [tools[0].invoke(one) for one in call.tool_calls]
        assert isinstance(results[0], ToolMessage)
        answer = chat().bind_tools(tools).invoke([("user", QUESTION), call, *results])
        assert answer.content or answer.tool_calls

    def agent_left_alone() -> None:
        agent = create_agent(chat(max_tokens=60), tools)
        assert agent.invoke({"messages": [("user", QUESTION)]}, {"recursion_limit": 30})["messages"]

    def errors() -> None:
        raised(openai.NotFoundError, lambda: chat(model="another").invoke(QUESTION))
        raised(openai.BadRequestError, lambda: chat().invoke("x " * 100_000))

    return {
        "stream_equals_invoke": stream_equals_invoke,
        "completion": is_truthy(lambda: OpenAI(model=at.name, max_tokens=8, **place).invoke("Once upon a time")),
        "structured_output": each(structured_output, "json_schema", "function_calling"),
        "responses_api": is_truthy(lambda: chat(use_responses_api=True, **FEW).invoke(QUESTION).content),
        "tool_and_its_result": tool_and_its_result,
        "agent_left_alone_accepted": agent_left_alone,
        "errors": errors,
    }


def litellm(at: At) -> Checks:
    import litellm

    place: dict[str, Any] = {"api_base": at.v1, "api_key": at.key}

    def ask(model: str = f"openai/{at.name}", **fields: Any) -> Any:
        return litellm.completion(model, **{"messages": [USER], **place, **MORE, **fields})

    def provider(name: str) -> None:
        assert ask(f"{name}/{at.name}", **FEW).choices[0].message.content

    def stream_with_usage() -> None:
        parts, whole = list(ask(stream=True, stream_options={"include_usage": True}, **FEW)), ask(**FEW)
        text = "".join(choice.delta.content or "" for part in parts for choice in part.choices)
        assert text == whole.choices[0].message.content
        assert litellm.stream_chunk_builder(parts).usage.completion_tokens == whole.usage.completion_tokens

    def tool_and_its_result() -> None:
        call = ask(tools=[TOOL], tool_choice="required").choices[0].message
        results = [{"role": "tool", "tool_call_id": one.id, "content": ANSWER} for one in call.tool_calls]
        assert ask(messages=[USER, call, *results], tools=[TOOL]).choices

    def anthropic_messages() -> None:
        asked: Any = {"model": f"openai/{at.name}", "messages": [USER], **place, **FEW}
        assert asyncio.run(litellm.anthropic.messages.acreate(**asked))["content"]

    def errors() -> None:
        raised(litellm.NotFoundError, lambda: ask("openai/another"))
        long = [{"role": "user", "content": "x " * 100_000}]
        for model in (f"openai/{at.name}", f"hosted_vllm/{at.name}"):
            raised(litellm.ContextWindowExceededError, lambda model=model: ask(model, messages=long))

    return {
        "providers": each(provider, "openai", "hosted_vllm"),
        "stream_with_usage": stream_with_usage,
        "tool_and_its_result": tool_and_its_result,
        "responses": is_truthy(
            lambda: litellm.responses(model=f"openai/{at.name}", input=QUESTION, max_output_tokens=24, **place).output
        ),
        "anthropic_messages": anthropic_messages,
        "errors": errors,
    }


# Client -> its checks, and the package whose version is printed.
CLIENTS: dict[str, tuple[Callable[[At], Checks], str]] = {
    "huggingface_hub": (huggingface_hub, "huggingface_hub"),
    "langchain": (langchain, "langchain-openai"),
    "litellm": (litellm, "litellm"),
}

if __name__ == "__main__":
    checks_of, package = CLIENTS[os.environ["SPLITFUSE_CLIENT"]]
    sys.exit(run(checks_of(At(sys.argv[1])), package))
