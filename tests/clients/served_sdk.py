"""Packages of frameworks on the models themselves: a text, a stream, a structure, a tool, an error of each.

`SPLITFUSE_CLIENT=litellm python tests/clients/served_sdk.py URL` runs one. A function per client returns its checks by
name. It imports its packages itself, because the others are not installed. Grammars force what a toy gets wrong.
"""

import asyncio
import json
import os
import re
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


def dspy(at: At) -> Checks:
    import dspy
    from dspy.utils.exceptions import ContextWindowExceededError

    class Able(dspy.LM):  # dspy assumes neither ability for a model outside its catalogue
        supports_function_calling = True
        supports_response_schema = True
        supported_params = frozenset({"max_tokens", "response_format", "temperature", "tool_choice", "tools"})

    def model(**fields: Any) -> Any:
        place: dict[str, Any] = {"api_base": at.v1, "api_key": at.key, "cache": False, "num_retries": 0}
        return Able(**{"model": f"openai/{at.name}", **MORE, **place, **fields})

    def predict() -> None:
        sky: Any = Literal["rain", "sun"]
        signature = dspy.Signature({"question": (str, dspy.InputField()), "sky": (sky, dspy.OutputField())})
        with dspy.context(lm=model(), adapter=dspy.JSONAdapter()):
            assert dspy.Predict(signature)(question=QUESTION).sky in ("rain", "sun")

    return {
        "text": each(lambda kind: _assert(model(model_type=kind, **FEW)(QUESTION)[0]), "chat", "text", "responses"),
        "predict": predict,
        "errors": lambda: _assert(raised(ContextWindowExceededError, lambda: model(**FEW)("x " * 100_000))),
    }


def _assert(value: object) -> None:
    assert value


def guidance(at: At) -> Checks:
    from guidance import Tool, assistant, gen, models, select, user
    from guidance import json as of_schema
    from guidance.models.experimental import VLLMModel

    place: dict[str, Any] = {"base_url": at.v1, "api_key": at.key, "echo": False}
    kinds = (models.OpenAI(at.name, **place), VLLMModel(at.name, **place))

    def ask(model: Any, *answers: Any) -> str:
        with user():
            model += QUESTION
        with assistant():
            for answer in answers:
                model += answer
        return str(model["it"])

    def choice_and_regex() -> None:
        assert ask(kinds[1], select(["rain", "sun"], name="it")) in ("rain", "sun")
        assert re.fullmatch("[0-9]{2} C", ask(kinds[1], gen("it", regex="[0-9]{2} C")))

    def tool() -> None:
        called: list[str] = []

        def call(town: str) -> str:
            called.append(town)
            return ANSWER

        tools = [Tool.from_callable(call, name="weather", description="The weather in a town", parameters=town_model())]
        # With tools guidance takes no max_tokens: under "auto" a small model would fill its whole context.
        ask(kinds[0], gen(tools=tools, tool_choice="required"), gen("it", max_tokens=24))
        assert called

    return {
        "text": each(lambda model: _assert(ask(model, gen("it", max_tokens=24))), *kinds),
        "json_schema": each(
            lambda model: _assert('"town"' in ask(model, of_schema("it", schema=TOWN_SCHEMA, max_tokens=60))), *kinds
        ),
        "choice_and_regex": choice_and_regex,
        "tool_and_its_result": tool,
    }


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


def instructor(at: At) -> Checks:
    import instructor
    import openai
    from instructor import Mode
    from instructor.core.exceptions import InstructorRetryException

    client, town = openai.OpenAI(base_url=at.v1, api_key=at.key, max_retries=0), town_model()
    asked = {"model": at.name, "messages": [USER], "response_model": town, "max_tokens": 80, "max_retries": 0}

    def of_mode(mode: Any) -> None:
        assert isinstance(instructor.from_openai(client, mode=mode).chat.completions.create(**asked), town)

    def partial_stream() -> None:
        parts = list(instructor.from_openai(client, mode=Mode.TOOLS).chat.completions.create_partial(**asked))
        assert parts[-1].town in ("Rome", "Oslo")

    def errors() -> None:
        wrong = instructor.from_openai(client, mode=Mode.TOOLS).chat.completions.create
        assert "not served here" in str(
            raised(InstructorRetryException, lambda: wrong(**{**asked, "model": "another"}))
        )

    modes = {"tools": Mode.TOOLS, "tools_strict": Mode.TOOLS_STRICT, "json_schema": Mode.JSON_SCHEMA}
    return {name: each(of_mode, mode) for name, mode in modes.items()} | {
        "partial_stream": partial_stream,
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


def llama_index(at: At) -> Checks:
    import openai
    from llama_index.core.llms import ChatMessage
    from llama_index.core.prompts import PromptTemplate
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    message, tools = ChatMessage(**USER), [FunctionTool.from_defaults(weather)]

    def like(**fields: Any) -> Any:
        able = {"is_chat_model": True, "is_function_calling_model": True, "max_retries": 0, "api_key": at.key}
        return OpenAILike(**{"model": at.name, "api_base": at.v1, **able, **MORE, **fields})

    def stream_equals_chat() -> None:
        parts = list(like(**FEW).stream_chat([message]))
        assert "".join(part.delta or "" for part in parts) == like(**FEW).chat([message]).message.content

    def structured(fields: Any) -> None:
        town = town_model()
        assert isinstance(like(**fields).structured_predict(town, PromptTemplate(QUESTION)), town)

    def tool_and_its_result() -> None:
        answer = like().chat_with_tools(tools, user_msg=QUESTION, tool_required=True)
        (call, *_) = like().get_tool_calls_from_response(answer)
        result = ChatMessage(role="tool", content=ANSWER, additional_kwargs={"tool_call_id": call.tool_id})
        assert like().chat_with_tools(tools, chat_history=[message, answer.message, result])

    return {
        "complete": is_truthy(lambda: like(is_chat_model=False, **FEW).complete("Once upon a time").text),
        "stream_equals_chat": stream_equals_chat,
        "structured": each(structured, {}, {"should_use_structured_outputs": True}),
        "tool_and_its_result": tool_and_its_result,
        "errors": lambda: _assert(raised(openai.NotFoundError, lambda: like(model="another").chat([message]))),
    }


def outlines(at: At) -> Checks:
    import openai
    import outlines
    from outlines.exceptions import NotFoundError
    from outlines.types import CFG, Regex

    client = openai.OpenAI(base_url=at.v1, api_key=at.key, max_retries=0)
    makers = (outlines.from_openai, outlines.from_vllm, outlines.from_sglang)
    models = [make(client, at.name) for make in makers]

    def constraints(model: Any) -> None:
        assert model(QUESTION, Literal["rain", "sun"], max_tokens=10) in ("rain", "sun")
        assert re.fullmatch("[0-9]{2} C", model(QUESTION, Regex("[0-9]{2} C"), max_tokens=10))

    return {
        "text": each(lambda model: _assert(model(QUESTION, max_tokens=24)), *models),
        "stream": each(lambda model: _assert(len(list(model.stream(QUESTION, max_tokens=24))) > 1), *models),
        "pydantic": each(
            lambda model: town_model().model_validate_json(model(QUESTION, town_model(), max_tokens=60)), *models
        ),
        "constraints": each(constraints, *models[1:]),
        "grammar": lambda: _assert(models[1](QUESTION, CFG('start: "rain" | "sun"'), max_tokens=10) in ("rain", "sun")),
        "errors": lambda: _assert(raised(NotFoundError, lambda: makers[0](client, "another")(QUESTION))),
    }


def pydantic_ai(at: At) -> Checks:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.exceptions import ModelHTTPError
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider: Any = OpenAIProvider(base_url=at.v1, api_key=at.key)
    models = [kind(at.name, provider=provider) for kind in (OpenAIChatModel, OpenAIResponsesModel)]
    few: Any = FEW
    more: Any = MORE

    def text_and_usage(model: Any) -> None:
        result = Agent(model, instructions="Be brief.").run_sync(QUESTION, model_settings=few)
        assert result.output
        assert 0 < result.usage.output_tokens <= 24

    def stream(model: Any) -> None:
        async def parts() -> list[str]:
            async with Agent(model).run_stream(QUESTION, model_settings=few) as result:
                return [part async for part in result.stream_text(delta=True, debounce_by=None)]

        assert len(asyncio.run(parts())) > 1

    def output_types(model: Any) -> None:
        town = town_model()
        for kind in (town, NativeOutput(town)):
            assert isinstance(Agent(model, output_type=kind).run_sync(QUESTION, model_settings=more).output, town)

    def errors() -> None:
        agent = Agent(OpenAIChatModel("another", provider=provider))
        assert raised(ModelHTTPError, lambda: agent.run_sync(QUESTION)).status_code == 404

    return {
        "text_and_usage": each(text_and_usage, *models),
        "stream": each(stream, *models),
        "output_types": each(output_types, *models),
        "tools_auto_accepted": is_truthy(
            lambda: Agent(models[0], tools=[weather]).run_sync(QUESTION, model_settings=more).output
        ),
        "errors": errors,
    }


# Client -> its checks, and the package whose version is printed.
CLIENTS: dict[str, tuple[Callable[[At], Checks], str]] = {
    "dspy": (dspy, "dspy"),
    "guidance": (guidance, "guidance"),
    "huggingface_hub": (huggingface_hub, "huggingface_hub"),
    "instructor": (instructor, "instructor"),
    "langchain": (langchain, "langchain-openai"),
    "litellm": (litellm, "litellm"),
    "llama-index": (llama_index, "llama-index-llms-openai-like"),
    "outlines": (outlines, "outlines"),
    "pydantic-ai": (pydantic_ai, "pydantic-ai-slim"),
}

if __name__ == "__main__":
    checks_of, package = CLIENTS[os.environ["SPLITFUSE_CLIENT"]]
    sys.exit(run(checks_of(At(sys.argv[1])), package))
