"""`pydantic-ai` over Messages and Responses: `python tests/clients/pydantic_ai_anthropic_sdk.py URL`."""

import sys
from typing import Any

from checks import ANSWER, QUESTION, follow, key, main, model_of, said
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


def weather(town: str) -> str:
    """Tell the weather in a town."""
    return ANSWER


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, self._name = url, model_of(url)

    def anthropic(self) -> None:
        self._loop(AnthropicModel(self._name, provider=AnthropicProvider(base_url=self._url, api_key=key())))

    def responses(self) -> None:
        self._loop(OpenAIResponsesModel(self._name, provider=OpenAIProvider(base_url=f"{self._url}/v1", api_key=key())))

    def _loop(self, model: Any) -> None:
        follow(self._url, {"name": "weather", "arguments": {"town": "Rome"}}, "It is wet.")
        agent = Agent(model, tools=[weather])
        assert agent.run_sync(QUESTION).output == "It is wet."
        assert ANSWER in said(self._url)[-1]
        follow(self._url, {"name": "weather", "arguments": {"town": "Rome"}}, "It is wet.")
        assert agent.run_stream_sync(QUESTION).get_output() == "It is wet."


if __name__ == "__main__":
    sys.exit(main(Checks, "pydantic-ai-slim"))
