"""The `pydantic-ai` package against a server: `python tests/clients/pydantic_ai_sdk.py BASE_URL`."""

import asyncio
import sys
from typing import Any, Literal

from checks import ANSWER, QUESTION, key, main, model_of, raised
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Town(BaseModel):
    """A town."""

    town: Literal["Rome", "Oslo"]


class RequiredFirst(AbstractCapability[Any]):
    """Have the model call a tool in its first turn; what it does then is its own choice."""

    def get_model_settings(self) -> Any:
        """The settings of a step."""

        def settings(context: RunContext[Any]) -> Any:
            return {"tool_choice": "required" if context.run_step <= 1 else "auto"}

        return settings


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._provider = OpenAIProvider(base_url=f"{url}/v1", api_key=key())
        self._name = model_of(url)
        self._models: list[Model] = [
            kind(self._name, provider=self._provider) for kind in (OpenAIChatModel, OpenAIResponsesModel)
        ]
        self._few: Any = {"max_tokens": 24, "temperature": 0}
        self._more: Any = {"max_tokens": 80, "temperature": 0}

    def text_and_usage(self) -> None:
        for model in self._models:
            result = Agent(model, instructions="Be brief.").run_sync(QUESTION, model_settings=self._few)
            assert result.output
            assert 0 < result.usage.output_tokens <= 24

    def stream(self) -> None:
        async def run(model: Model) -> tuple[list[str], int]:
            async with Agent(model).run_stream(QUESTION, model_settings=self._few) as result:
                parts = [part async for part in result.stream_text(delta=True, debounce_by=None)]
                return parts, result.usage.output_tokens

        for model in self._models:
            parts, num_tokens = asyncio.run(run(model))
            assert len(parts) > 1
            assert num_tokens > 0

    def output_types(self) -> None:
        for model in self._models:
            for kind in (Town, NativeOutput(Town)):
                result = Agent(model, output_type=kind).run_sync(QUESTION, model_settings=self._more)
                assert isinstance(result.output, Town)

    def tool_and_its_result(self) -> None:
        for model in self._models:
            agent = Agent(model, capabilities=[RequiredFirst()])

            @agent.tool_plain
            def weather(town: Literal["Rome", "Oslo"]) -> str:
                """The weather in a town."""
                return ANSWER

            result = agent.run_sync(QUESTION, model_settings=self._more)
            parts = [part for message in result.all_messages() for part in message.parts]
            assert any(isinstance(part, ToolReturnPart) and part.content == ANSWER for part in parts)
            assert result.usage.requests >= 2

    def tools_auto_accepted(self) -> None:
        agent = Agent(self._models[0])

        @agent.tool_plain
        def weather(town: Literal["Rome", "Oslo"]) -> str:
            """The weather in a town."""
            return ANSWER

        assert agent.run_sync(QUESTION, model_settings=self._more).output

    def errors(self) -> None:
        agent = Agent(OpenAIChatModel("another", provider=self._provider))
        assert raised(ModelHTTPError, lambda: agent.run_sync(QUESTION)).status_code == 404


if __name__ == "__main__":
    sys.exit(main(Checks, "pydantic-ai-slim"))
