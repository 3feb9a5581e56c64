"""`strands-agents` against a scripted server: `python tests/clients/strands_sdk.py BASE_URL`."""

import sys
from typing import Any

from checks import ANSWER, QUESTION, follow, key, main, model_of, said
from strands import Agent, tool
from strands.models.anthropic import AnthropicModel
from strands.models.openai import OpenAIModel


@tool
def weather(town: str) -> str:
    """Tell the weather in a town."""
    return ANSWER


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, self._name = url, model_of(url)

    def chat(self) -> None:
        self._loop(OpenAIModel(client_args={"base_url": f"{self._url}/v1", "api_key": key()}, model_id=self._name))

    def anthropic(self) -> None:
        self._loop(
            AnthropicModel(client_args={"base_url": self._url, "api_key": key()}, model_id=self._name, max_tokens=64)
        )

    def _loop(self, model: Any) -> None:
        follow(self._url, {"name": "weather", "arguments": {"town": "Rome"}}, "It is wet.")
        assert str(Agent(model=model, tools=[weather], callback_handler=None)(QUESTION)).strip() == "It is wet."
        assert ANSWER in said(self._url)[-1]


if __name__ == "__main__":
    sys.exit(main(Checks, "strands-agents"))
