"""Packages with a few checks each, against a scripted server.

`SPLITFUSE_CLIENT=agno python tests/clients/scripted_sdk.py URL` runs one.

A function per client returns its checks by name. It imports its packages itself, because the others are not installed.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from checks import ANSWER, CALL, QUESTION, At, each, run

Checks = Mapping[str, Callable[[], None]]
USER: Any = {"role": "user", "content": QUESTION}


def weather(town: str) -> str:
    """Tell the weather in a town.

    Args:
        town: Its name.
    """
    return ANSWER


def town_model() -> Any:
    """Return a pydantic model; some clients' packages lack pydantic."""
    from pydantic import create_model

    return create_model("Town", town=(str, ...))


def joined(parts: Any) -> str:
    """Return the text of a stream of chat chunks."""
    return "".join(part.choices[0].delta.content or "" for part in parts if part.choices)


def agent_framework(at: At) -> Checks:
    from agent_framework import Agent
    from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient

    async def text(kind: Any, streams: bool) -> str:
        agent = Agent(client=kind(model=at.name, base_url=at.v1, api_key=at.key), tools=[weather])
        return (await (agent.run(QUESTION, stream=True).get_final_response() if streams else agent.run(QUESTION))).text

    def loop(kind: Any) -> None:
        for streams in (False, True):
            at.calls(lambda streams=streams: asyncio.run(text(kind, streams)))

    return {"chat": lambda: loop(OpenAIChatCompletionClient), "responses": lambda: loop(OpenAIChatClient)}


def agno(at: At) -> Checks:
    from agno.agent import Agent
    from agno.models.openai import OpenAIChat, OpenAIResponses
    from agno.models.openai.like import OpenAILike

    def agent(kind: Any) -> Any:
        model = kind(id=at.name, base_url=at.v1, api_key=at.key)
        return Agent(model=model, tools=[weather], telemetry=False)

    def loop(kind: Any) -> None:
        at.calls(lambda: agent(kind).run(QUESTION).content)
        at.calls(lambda: "".join(str(part.content or "") for part in agent(kind).run(QUESTION, stream=True)))

    kinds = {"like_openai": OpenAILike, "chat": OpenAIChat, "responses": OpenAIResponses}
    return {name: each(loop, kind) for name, kind in kinds.items()}


def aisuite(at: At) -> Checks:
    import aisuite

    providers = {"openai": {"api_key": at.key, "base_url": at.v1}, "anthropic": {"api_key": at.key, "base_url": at.url}}
    client = aisuite.Client(providers)

    def asked(provider: str, **options: Any) -> Any:
        answer = client.chat.completions.create(f"{provider}:{at.name}", [USER], **options)
        return joined(answer) if "stream" in options else answer.choices[0].message.content

    return {
        "chat": each(lambda provider: at.answers(lambda: asked(provider)), *providers),
        "stream": lambda: at.answers(lambda: asked("openai", stream=True)),
        "tool_and_its_result": each(
            lambda provider: at.calls(lambda: asked(provider, tools=[weather], max_turns=3)), *providers
        ),
    }


def any_llm(at: At) -> Checks:
    import any_llm

    providers = ("openai", "vllm", "llamacpp", "openrouter")
    place: dict[str, Any] = {"api_key": at.key, "api_base": at.v1}
    asked: dict[str, Any] = {"model": at.name, "messages": [USER], **place}

    def text(provider: str) -> Any:
        return any_llm.completion(provider=provider, **asked).choices[0].message.content

    def tool() -> Any:
        message = any_llm.completion(provider="vllm", tools=[weather], **asked).choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": ANSWER}
        more = {**asked, "messages": [USER, message, result]}
        return any_llm.completion(provider="vllm", tools=[weather], **more).choices[0].message.content

    def responses() -> Any:
        answer: Any = any_llm.responses(provider="openai", model=at.name, input_data=QUESTION, **place)
        return answer.output[-1].content[0].text

    def messages() -> Any:
        answer: Any = any_llm.messages(provider="anthropic", **{**asked, "api_base": at.url, "max_tokens": 64})
        return answer.content[0].text

    def list_models() -> None:
        assert any_llm.list_models("openai", **place)[0].id == at.name

    return {
        "providers": each(lambda provider: at.answers(lambda: text(provider)), *providers),
        "stream": each(
            lambda name: at.answers(lambda: joined(any_llm.completion(provider=name, stream=True, **asked))), *providers
        ),
        "responses": lambda: at.answers(responses),
        "messages": lambda: at.answers(messages),
        "tool_and_its_result": lambda: at.calls(tool),
        "list_models": list_models,
    }


def autogen(at: At) -> Checks:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_agentchat.conditions import MaxMessageTermination
    from autogen_agentchat.teams import RoundRobinGroupChat
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    info: Any = dict.fromkeys(("vision", "function_calling", "json_output", "structured_output"), True)
    info["family"] = "unknown"

    async def weather(town: str) -> str:
        """Tell the weather in a town."""
        return ANSWER

    def agent(**options: Any) -> Any:
        model = OpenAIChatCompletionClient(model=at.name, base_url=at.v1, api_key=at.key, model_info=info)
        return AssistantAgent("helper", model, tools=[weather], **options)

    def loop(streams: bool) -> None:
        def text() -> Any:
            helper = agent(reflect_on_tool_use=True, model_client_stream=streams)
            return asyncio.run(helper.run(task=QUESTION)).messages[-1].content

        at.calls(text, needs_tools=False)

    def team() -> None:
        at.follow(ANSWER)
        team = RoundRobinGroupChat([agent()], termination_condition=MaxMessageTermination(3))
        assert len(asyncio.run(team.run(task=QUESTION)).messages) == 3

    return {"agent_and_its_tool": each(loop, False, True), "team": team}


def crewai(at: At) -> Checks:
    os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TRACING_ENABLED": "false"}
    from crewai import LLM, Agent, Crew, Task
    from crewai.tools import tool

    model = LLM(model=f"openai/{at.name}", base_url=at.v1, api_key=at.key)

    def crew() -> Any:
        tools = [tool("weather")(weather)]
        agent = Agent(role="helper", goal="help", backstory="none", llm=model, tools=tools, max_iter=3)
        task = Task(description=QUESTION, expected_output="a sentence", agent=agent)
        return Crew(agents=[agent], tasks=[task]).kickoff()

    return {"call": lambda: at.answers(lambda: model.call(QUESTION)), "crew": lambda: at.calls(crew, needs_tools=False)}


def deepeval(at: At) -> Checks:
    os.environ["DEEPEVAL_TELEMETRY_OPT_OUT"] = "YES"
    from deepeval.metrics import GEval
    from deepeval.models import LocalModel
    from deepeval.test_case import LLMTestCase, SingleTurnParams

    model = LocalModel(model=at.name, base_url=at.v1, api_key=at.key)

    def judge() -> None:
        at.follow('{"score": 8, "reason": "It is short."}', marker="Be short")
        parameters = [SingleTurnParams.ACTUAL_OUTPUT]
        steps: Any = {"evaluation_steps": ["Be short."], "evaluation_params": parameters}
        metric = GEval(name="brevity", model=model, async_mode=False, **steps)
        metric.measure(LLMTestCase(input=QUESTION, actual_output=ANSWER), _show_indicator=False)
        assert (metric.score, metric.reason) == (0.8, "It is short.")

    return {"text": lambda: at.answers(lambda: model.generate(QUESTION)[0]), "judge": judge}


def gradio(at: At) -> Checks:
    os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1"}
    import gradio
    from gradio_client import Client

    def chat(streams: bool) -> None:
        at.follow(ANSWER)
        page = gradio.load_chat(at.v1, at.name, at.key, file_types=None, streaming=streams, api_name="chat")
        _, local, _ = page.launch(prevent_thread_lock=True, quiet=True)
        try:
            assert Client(local, verbose=False).predict(QUESTION, api_name="/chat") == ANSWER
        finally:
            page.close()

    return {"whole": lambda: chat(False), "streamed": lambda: chat(True)}


def haystack(at: At) -> Checks:
    from haystack.components.agents import Agent
    from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import tool
    from haystack.utils import Secret

    kinds = (OpenAIChatGenerator, OpenAIResponsesChatGenerator)
    user = [ChatMessage.from_user(QUESTION)]

    def generator(kind: Any, **options: Any) -> Any:
        return kind(model=at.name, api_base_url=at.v1, api_key=Secret.from_token(at.key), **options)

    def streamed(kind: Any) -> str:
        parts: list[Any] = []
        generator(kind, streaming_callback=parts.append).run(user)
        return "".join(part.content or "" for part in parts)

    def agent(kind: Any) -> Any:
        return Agent(chat_generator=generator(kind), tools=[tool(weather)]).run(messages=user)["messages"][-1].text

    return {
        "chat": each(lambda kind: at.answers(lambda: generator(kind).run(user)["replies"][0].text), *kinds),
        "stream": each(lambda kind: at.answers(lambda: streamed(kind)), *kinds),
        "agent": each(lambda kind: at.calls(lambda: agent(kind)), *kinds),
    }


def langfuse(at: At) -> Checks:
    os.environ |= {"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk", "LANGFUSE_BASE_URL": "http://127.0.0.1:9"}
    from langfuse import Langfuse
    from langfuse.openai import OpenAI
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans = InMemorySpanExporter()  # they stay in memory
    Langfuse(span_exporter=spans)

    def has_span() -> None:
        Langfuse().flush()
        (span,) = spans.get_finished_spans()
        spans.clear()
        assert ANSWER in str(span.attributes["langfuse.observation.output"])
        usage = json.loads(str(span.attributes["langfuse.observation.usage_details"]))
        assert max(usage.get("completion_tokens", 0), usage.get("output_tokens", 0)) > 0, usage

    return _traced_openai(at, OpenAI, has_span, has_completions=False)


def openllmetry(at: At) -> Checks:
    from openai import OpenAI
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    OpenAIInstrumentor().instrument(tracer_provider=provider)

    def has_span() -> None:
        (span,) = spans.get_finished_spans()
        spans.clear()
        attributes = dict(span.attributes or {})
        assert attributes["gen_ai.response.model"] == at.name, attributes
        assert int(str(attributes["gen_ai.usage.output_tokens"])) > 0, attributes

    return _traced_openai(at, OpenAI, has_span, has_completions=True)


def _traced_openai(at: At, kind: Any, has_span: Callable[[], None], *, has_completions: bool) -> Checks:
    """Return checks of an instrumented openai package, of whose requests each has a span."""
    client = kind(base_url=at.v1, api_key=at.key, max_retries=0)
    chat: Any = {"model": at.name, "messages": [USER]}
    streams: Any = {"stream": True, "stream_options": {"include_usage": True}}
    asked: dict[str, Callable[[], object]] = {
        "chat": lambda: client.chat.completions.create(**chat).choices[0].message.content,
        "stream": lambda: joined(list(client.chat.completions.create(**chat, **streams))),
        "responses": lambda: client.responses.create(model=at.name, input=QUESTION).output_text,
    }
    if has_completions:
        asked["completion"] = lambda: client.completions.create(model=at.name, prompt=QUESTION).choices[0].text

    def check(ask: Callable[[], object]) -> None:
        at.answers(ask)
        has_span()

    return {name: each(check, ask) for name, ask in asked.items()}


def langgraph(at: At) -> Checks:
    from langchain_anthropic import ChatAnthropic
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    tools = [tool(weather)]
    models: dict[str, Any] = {
        "chat": ChatOpenAI(model=at.name, base_url=at.v1, api_key=at.key),
        "responses": ChatOpenAI(model=at.name, base_url=at.v1, api_key=at.key, use_responses_api=True),
        "anthropic": ChatAnthropic(model=at.name, base_url=at.url, api_key=at.key, max_tokens=64),
    }

    def loop(name: str) -> None:
        model = models[name].bind_tools(tools)
        graph: Any = StateGraph(MessagesState)
        graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
        graph.add_node("tools", ToolNode(tools))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        state, compiled = {"messages": [("user", QUESTION)]}, graph.compile()
        at.calls(lambda: compiled.invoke(state)["messages"][-1].text)
        at.calls(lambda: list(compiled.stream(state, stream_mode="values"))[-1]["messages"][-1].text)

    stream = lambda: "".join(part.text for part in models["anthropic"].stream(QUESTION))  # noqa: E731
    return {name: each(loop, name) for name in models} | {"anthropic_stream": lambda: at.answers(stream)}


def magentic(at: At) -> Checks:
    from magentic import FunctionCall, OpenaiChatModel, StreamedStr, prompt, prompt_chain

    model, Town = OpenaiChatModel(at.name, base_url=at.v1, api_key=at.key), town_model()

    @prompt(QUESTION, model=model)
    def text() -> str: ...

    @prompt(QUESTION, model=model)
    def stream() -> StreamedStr: ...

    @prompt(QUESTION, model=model)
    def town() -> Town: ...  # type: ignore[valid-type]

    @prompt(QUESTION, functions=[weather], model=model)
    def call() -> FunctionCall[str]: ...

    @prompt_chain(QUESTION, functions=[weather], model=model)
    def chain() -> str: ...

    def structured() -> None:
        at.follow({"name": "return_town", "arguments": {"town": "Rome"}})
        assert town() == Town(town="Rome")

    def function_call() -> None:
        at.follow(CALL, needs_tools=True)
        assert call()() == ANSWER

    return {
        "text": lambda: at.answers(text),
        "stream": lambda: at.answers(lambda: "".join(stream())),
        "structured": structured,
        "function_call": function_call,
        "chain": lambda: at.calls(chain),
    }


def mem0(at: At) -> Checks:
    os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": tempfile.mkdtemp(prefix="splitfuse-")}
    from mem0 import Memory
    from mem0.embeddings.mock import MockEmbeddings
    from mem0.utils.factory import EmbedderFactory

    fact = "Likes the rain of Rome"
    EmbedderFactory.create = lambda *_: MockEmbeddings()  # the server has no embeddings

    def remembers(provider: str) -> None:
        """The model finds a fact in the messages, and the fact is kept."""
        model = {"model": at.name, "api_key": at.key, f"{provider}_base_url": at.v1}
        store = {"path": tempfile.mkdtemp(prefix="splitfuse-"), "embedding_model_dims": 10}
        parts = {
            "llm": {"provider": provider, "config": model},
            "vector_store": {"provider": "qdrant", "config": store},
        }
        memory = Memory.from_config(parts)
        at.follow(json.dumps({"memory": [{"id": "0", "text": fact}]}))
        memory.add([USER], user_id=provider)
        kept = memory.get_all(filters={"user_id": provider})["results"]
        assert [one["memory"] for one in kept] == [fact], kept

    return {"openai": lambda: remembers("openai"), "vllm": lambda: remembers("vllm")}


def mirascope(at: At) -> Checks:
    from mirascope import llm

    llm.register_provider("openai", scope="openai/", base_url=at.v1, api_key=at.key)
    models, town = [f"openai/{at.name}:{api}" for api in ("completions", "responses")], town_model()

    def asked(model: Any, **options: Any) -> Any:
        @llm.call(model, **options)
        def ask() -> str:
            return QUESTION

        return ask

    def structured(model: str) -> None:
        at.follow('{"town": "Rome"}')
        assert asked(model, format=town)().parse() == town(town="Rome")

    def tool(model: str) -> str:
        first = asked(model, tools=[llm.tool(weather)])()
        return str(first.resume(first.execute_tools()).text())

    return {
        "text": each(lambda model: at.answers(lambda: asked(model)().text()), *models),
        "stream": each(lambda model: at.answers(lambda: "".join(asked(model).stream().text_stream(sep=""))), *models),
        "structured": each(structured, *models),
        "tool_and_its_result": each(lambda model: at.calls(lambda: tool(model)), *models),
    }


def portkey(at: At) -> Checks:
    from portkey_ai import Portkey

    parameters = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
    # The server is its gateway.
    client: Any = Portkey(base_url=at.v1, provider="openai", api_key="portkey", Authorization=f"Bearer {at.key}")

    def chat(*messages: Any, **options: Any) -> Any:
        return client.chat.completions.create(model=at.name, messages=[USER, *messages], **options)

    def tool() -> Any:
        message = chat(tools=tools).choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": ANSWER}
        return chat(message.model_dump(exclude_none=True), result, tools=tools).choices[0].message.content

    return {
        "chat": lambda: at.answers(lambda: chat().choices[0].message.content),
        "stream": lambda: at.answers(lambda: joined(chat(stream=True))),
        "responses": lambda: at.answers(lambda: client.responses.create(model=at.name, input=QUESTION).output_text),
        "tool_and_its_result": lambda: at.calls(tool),
    }


def pydantic_ai_anthropic(at: At) -> Checks:
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    def loop(model: Any) -> None:
        agent = Agent(model, tools=[weather])
        at.calls(lambda: agent.run_sync(QUESTION).output)
        at.calls(lambda: agent.run_stream_sync(QUESTION).get_output())

    messages = AnthropicModel(at.name, provider=AnthropicProvider(base_url=at.url, api_key=at.key))
    responses = OpenAIResponsesModel(at.name, provider=OpenAIProvider(base_url=at.v1, api_key=at.key))
    return {"anthropic": lambda: loop(messages), "responses": lambda: loop(responses)}


def semantic_kernel(at: At) -> Checks:
    from openai import AsyncOpenAI
    from semantic_kernel.agents import ChatCompletionAgent
    from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
    from semantic_kernel.functions import kernel_function

    class Weather:
        """Plugin with one function."""

        of = kernel_function(lambda self, town: ANSWER, name="of", description="Tell the weather in a town.")

    def agent(*plugins: object) -> Any:
        client = AsyncOpenAI(base_url=at.v1, api_key=at.key, max_retries=0)
        service = OpenAIChatCompletion(ai_model_id=at.name, async_client=client)
        return ChatCompletionAgent(service=service, name="helper", plugins=[*plugins])

    async def streamed() -> str:
        return "".join([str(part.content) async for part in agent(Weather()).invoke_stream(messages=QUESTION)])

    call = {"name": "Weather-of", "arguments": {"town": "Rome"}}
    whole = lambda *plugins: str(asyncio.run(agent(*plugins).get_response(messages=QUESTION)))  # noqa: E731
    return {
        "agent": lambda: at.answers(whole),
        "agent_and_its_plugin": lambda: at.calls(lambda: whole(Weather()), call=call),
        "streamed": lambda: at.calls(lambda: asyncio.run(streamed()), call=call),
    }


def smolagents(at: At) -> Checks:
    from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

    model = OpenAIModel(model_id=at.name, api_base=at.v1, api_key=at.key)
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    tools = [tool(weather)]

    def generate() -> None:
        at.answers(lambda: model.generate(messages).content)
        at.answers(lambda: "".join(part.content or "" for part in model.generate_stream(messages)))

    def tool_calling(streams: bool) -> None:
        at.follow(CALL, {"name": "final_answer", "arguments": {"answer": ANSWER}}, needs_tools=True)
        assert ToolCallingAgent(tools=tools, model=model, stream_outputs=streams, max_steps=3).run(QUESTION) == ANSWER
        assert len(at.heard()) == 2

    def code_agent() -> None:
        at.follow("I look.\n<code>\nfinal_answer(weather('Rome'))\n</code>")
        assert CodeAgent(tools=tools, model=model, max_steps=2).run(QUESTION) == ANSWER

    return {"generate": generate, "tool_calling_agent": each(tool_calling, False, True), "code_agent": code_agent}


def strands(at: At) -> Checks:
    from strands import Agent, tool
    from strands.models.anthropic import AnthropicModel
    from strands.models.openai import OpenAIModel

    def loop(model: Any) -> None:
        at.calls(lambda: str(Agent(model=model, tools=[tool(weather)], callback_handler=None)(QUESTION)))

    chat = OpenAIModel(client_args={"base_url": at.v1, "api_key": at.key}, model_id=at.name)
    place = {"base_url": at.url, "api_key": at.key}
    messages = AnthropicModel(client_args=place, model_id=at.name, max_tokens=64)
    return {"chat": lambda: loop(chat), "anthropic": lambda: loop(messages)}


# Client -> its checks, and the package whose version is printed.
CLIENTS: dict[str, tuple[Callable[[At], Checks], str]] = {
    "agent-framework": (agent_framework, "agent-framework-core"),
    "agno": (agno, "agno"),
    "aisuite": (aisuite, "aisuite"),
    "any-llm": (any_llm, "any-llm-sdk"),
    "autogen": (autogen, "autogen-agentchat"),
    "crewai": (crewai, "crewai"),
    "deepeval": (deepeval, "deepeval"),
    "gradio": (gradio, "gradio"),
    "haystack": (haystack, "haystack-ai"),
    "langfuse": (langfuse, "langfuse"),
    "langgraph": (langgraph, "langgraph"),
    "magentic": (magentic, "magentic"),
    "mem0": (mem0, "mem0ai"),
    "mirascope": (mirascope, "mirascope"),
    "openllmetry": (openllmetry, "opentelemetry-instrumentation-openai"),
    "portkey": (portkey, "portkey-ai"),
    "pydantic-ai-anthropic": (pydantic_ai_anthropic, "pydantic-ai-slim"),
    "semantic-kernel": (semantic_kernel, "semantic-kernel"),
    "smolagents": (smolagents, "smolagents"),
    "strands": (strands, "strands-agents"),
}

if __name__ == "__main__":
    checks_of, package = CLIENTS[os.environ["SPLITFUSE_CLIENT"]]
    sys.exit(run(checks_of(At(sys.argv[1])), package))
