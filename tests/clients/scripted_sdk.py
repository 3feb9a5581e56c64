"""Packages with a few checks each, against a scripted server.

`SPLITFUSE_CLIENT=agno python tests/clients/scripted_sdk.py URL` runs one.

A function per client returns its checks by name. It imports its packages itself, because the others are not installed.
"""

import asyncio
import os
import sys
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
    "autogen": (autogen, "autogen-agentchat"),
    "crewai": (crewai, "crewai"),
    "haystack": (haystack, "haystack-ai"),
    "langgraph": (langgraph, "langgraph"),
    "pydantic-ai-anthropic": (pydantic_ai_anthropic, "pydantic-ai-slim"),
    "semantic-kernel": (semantic_kernel, "semantic-kernel"),
    "smolagents": (smolagents, "smolagents"),
    "strands": (strands, "strands-agents"),
}

if __name__ == "__main__":
    checks_of, package = CLIENTS[os.environ["SPLITFUSE_CLIENT"]]
    sys.exit(run(checks_of(At(sys.argv[1])), package))
