"""`langchain-openai` and langchain's agent against a server: `python tests/clients/langchain_sdk.py BASE_URL`."""

import sys
from collections.abc import Callable
from typing import Any, Literal

import openai
from checks import ANSWER, QUESTION, key, main, model_of, raised
from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel


class Town(BaseModel):
    """A town."""

    town: Literal["Rome", "Oslo"]


@tool
def weather(town: Literal["Rome", "Oslo"]) -> str:
    """The weather in a town."""
    return ANSWER


@wrap_model_call
def required_first(request: Any, handler: Callable[[Any], Any]) -> Any:
    """Have the model call a tool in its first turn; what it does then is its own choice."""
    answered = any(isinstance(message, ToolMessage) for message in request.messages)
    return handler(request if answered else request.override(tool_choice="any"))


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._address: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": key(), "max_retries": 0}
        self._name = model_of(url)
        self._llm = self._chat(max_tokens=24)

    def invoke(self) -> None:
        message = self._llm.invoke(QUESTION)
        assert message.content
        assert message.usage_metadata["output_tokens"] <= 24
        assert message.response_metadata["model_name"] == self._name

    def stream_equals_invoke(self) -> None:
        parts = list(self._chat(max_tokens=24, stream_usage=True).stream(QUESTION))
        assert "".join(part.content for part in parts) == self._llm.invoke(QUESTION).content
        assert any(part.usage_metadata for part in parts)

    def batch(self) -> None:
        assert len(self._llm.batch([QUESTION] * 8)) == 8

    def completion(self) -> None:
        assert OpenAI(model=self._name, max_tokens=8, **self._address).invoke("Once upon a time")

    def structured_output(self) -> None:
        for method in ("json_schema", "function_calling"):
            assert isinstance(self._chat().with_structured_output(Town, method=method).invoke(QUESTION), Town)

    def responses_api(self) -> None:
        message = self._chat(max_tokens=24, use_responses_api=True).invoke(QUESTION)
        assert message.content

    def tool_and_its_result(self) -> None:
        call = self._chat().bind_tools([weather], tool_choice="any", strict=True).invoke(QUESTION)
        assert call.tool_calls[0]["name"] == "weather"
        results = [weather.invoke(one) for one in call.tool_calls]
        answer = self._chat().bind_tools([weather]).invoke([("user", QUESTION), call, *results])
        assert answer.content or answer.tool_calls

    def agent(self) -> None:
        for more in ({}, {"use_responses_api": True}):
            agent = create_agent(self._chat(max_tokens=60, **more), [weather], middleware=[required_first])
            turns = agent.invoke({"messages": [("user", QUESTION)]}, {"recursion_limit": 30})["messages"]
            assert any(isinstance(message, ToolMessage) and message.content == ANSWER for message in turns)
            assert isinstance(turns[-1], AIMessage)

    def agent_streamed(self) -> None:
        agent = create_agent(self._chat(max_tokens=60), [weather], middleware=[required_first])
        parts = list(agent.stream({"messages": [("user", QUESTION)]}, {"recursion_limit": 30}, stream_mode="messages"))
        assert any(isinstance(part, ToolMessage) for part, _ in parts)

    def agent_left_alone_accepted(self) -> None:
        agent = create_agent(self._chat(max_tokens=60), [weather])
        assert agent.invoke({"messages": [("user", QUESTION)]}, {"recursion_limit": 30})["messages"]

    def errors(self) -> None:
        raised(openai.NotFoundError, lambda: self._chat(model="another").invoke(QUESTION))
        raised(openai.BadRequestError, lambda: self._chat().invoke("x " * 100_000))

    def _chat(self, **fields: Any) -> ChatOpenAI:
        return ChatOpenAI(**{"model": self._name, "temperature": 0, "max_tokens": 80, **self._address, **fields})


if __name__ == "__main__":
    sys.exit(main(Checks, "langchain-openai"))
