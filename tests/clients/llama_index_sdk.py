"""`llama-index-llms-openai-like` and an agent against a server: `python tests/clients/llama_index_sdk.py BASE_URL`."""

import asyncio
import sys
from typing import Any, Literal

import openai
from checks import ANSWER, QUESTION, key, main, model_of, raised
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

USER = ChatMessage(role="user", content=QUESTION)


class Town(BaseModel):
    """A town."""

    town: Literal["Rome", "Oslo"]


def weather(town: Literal["Rome", "Oslo"]) -> str:
    """The weather in a town."""
    return ANSWER


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, self._name = url, model_of(url)
        self._llm = self._like(max_tokens=24)
        self._tool = FunctionTool.from_defaults(weather)

    def complete(self) -> None:
        llm = self._like(max_tokens=24, is_chat_model=False)
        assert llm.complete("Once upon a time").text
        assert list(llm.stream_complete("Once upon a time"))[-1].text

    def chat(self) -> None:
        answer = self._llm.chat([USER])
        assert answer.message.content
        assert answer.raw.usage.completion_tokens <= 24

    def stream_equals_chat(self) -> None:
        parts = list(self._llm.stream_chat([USER]))
        assert "".join(part.delta or "" for part in parts) == self._llm.chat([USER]).message.content

    def structured(self) -> None:
        for more in ({}, {"should_use_structured_outputs": True}):
            llm = self._like(max_tokens=60, **more)
            assert isinstance(llm.structured_predict(Town, PromptTemplate(QUESTION)), Town)

    def tool_and_its_result(self) -> None:
        llm = self._like(max_tokens=60)
        answer = llm.chat_with_tools([self._tool], user_msg=QUESTION, tool_required=True)
        (call, *_) = llm.get_tool_calls_from_response(answer)
        assert call.tool_name == "weather"
        result = ChatMessage(role="tool", content=ANSWER, additional_kwargs={"tool_call_id": call.tool_id})
        assert llm.chat_with_tools([self._tool], chat_history=[USER, answer.message, result])

    def agent(self) -> None:
        async def run() -> object:
            agent = FunctionAgent(tools=[self._tool], llm=self._like(max_tokens=60), initial_tool_choice="weather")
            handler = agent.run(QUESTION, max_iterations=8)
            names = [type(event).__name__ async for event in handler.stream_events()]
            assert "ToolCallResult" in names
            return await handler

        assert asyncio.run(run())

    def errors(self) -> None:
        raised(openai.NotFoundError, lambda: self._like(model="another").chat([USER]))

    def _like(self, **fields: Any) -> OpenAILike:
        able = {"is_chat_model": True, "is_function_calling_model": True, "max_retries": 0, "temperature": 0}
        return OpenAILike(**{"model": self._name, "api_base": f"{self._url}/v1", "api_key": key(), **able, **fields})


if __name__ == "__main__":
    sys.exit(main(Checks, "llama-index-llms-openai-like"))
