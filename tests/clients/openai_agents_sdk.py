"""The `openai-agents` package against a server: `python tests/clients/openai_agents_sdk.py BASE_URL`."""

import asyncio
import sys
from typing import Literal

import openai
from agents import (
    Agent,
    ItemHelpers,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from checks import ANSWER, QUESTION, key, main, model_of, raised
from pydantic import BaseModel

# An answer that ends: to the package a response cut off by max_tokens is an error.
BRIEF = {"structured_outputs": {"regex": "[A-Z][a-z ]{1,12}[.]"}}


class Town(BaseModel):
    """The output type of an agent."""

    town: Literal["Rome", "Oslo"]


class Checks:
    """Checks: one method per check, run in this order; the tool is required first, then the package sets auto."""

    def __init__(self, url: str) -> None:
        set_tracing_disabled(True)
        self._url, self._model = url, model_of(url)
        self._called: list[str] = []

    def chat(self) -> None:
        assert asyncio.run(self._run(self._chat_model())).strip()

    def responses(self) -> None:
        assert asyncio.run(self._run(self._responses_model())).strip()

    def streamed(self) -> None:
        async def run() -> str:
            agent = Agent(name="a", model=self._chat_model(), model_settings=ModelSettings(max_tokens=24))
            result = Runner.run_streamed(agent, QUESTION)
            kinds = [event.type async for event in result.stream_events()]
            assert kinds.count("raw_response_event") > 3
            return ItemHelpers.text_message_outputs(result.new_items)

        assert asyncio.run(run()).strip()

    def output_type(self) -> None:
        for model in (self._chat_model, self._responses_model):
            agent = Agent(name="a", model=model(), output_type=Town, model_settings=ModelSettings(max_tokens=80))
            assert isinstance(asyncio.run(Runner.run(agent, QUESTION)).final_output, Town)

    def chat_tool_and_its_result(self) -> None:
        self._two_turns(self._chat_model())

    def responses_tool_and_its_result(self) -> None:
        self._two_turns(self._responses_model())

    def errors(self) -> None:
        raised(openai.NotFoundError, lambda: asyncio.run(self._run(self._chat_model("another"))))

    def _chat_model(self, name: str | None = None) -> Model:
        return OpenAIChatCompletionsModel(name or self._model, self._client())

    def _responses_model(self) -> Model:
        return OpenAIResponsesModel(self._model, self._client())

    def _client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self._url}/v1", api_key=key(), max_retries=0)

    async def _run(self, model: Model) -> str:
        settings = ModelSettings(max_tokens=24, extra_body=BRIEF)
        agent = Agent(name="a", instructions="Be brief.", model=model, model_settings=settings)
        result = await Runner.run(agent, QUESTION)
        assert result.context_wrapper.usage.output_tokens > 0
        return str(result.final_output)

    def _two_turns(self, model: Model) -> None:
        called = []

        @function_tool
        def weather(town: Literal["Rome", "Oslo"]) -> str:
            """The weather in a town."""
            called.append(town)
            return ANSWER

        settings = ModelSettings(tool_choice="required", max_tokens=60, temperature=0, parallel_tool_calls=False)
        agent = Agent(name="a", model=model, tools=[weather], model_settings=settings)
        result = asyncio.run(Runner.run(agent, QUESTION, max_turns=6))
        assert called
        assert len(result.raw_responses) >= 2


if __name__ == "__main__":
    sys.exit(main(Checks, "openai-agents"))
