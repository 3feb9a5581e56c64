"""`haystack-ai` against a scripted server: `python tests/clients/haystack_sdk.py BASE_URL`."""

import sys
from typing import Any

from checks import ANSWER, QUESTION, follow, key, main, model_of, said
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret

CALL = {"name": "weather", "arguments": {"town": "Rome"}}


@tool
def weather(town: str) -> str:
    """Tell the weather in a town."""
    return ANSWER


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._asked = {"model": model_of(url), "api_base_url": f"{url}/v1", "api_key": Secret.from_token(key())}

    def chat(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        for kind in (OpenAIChatGenerator, OpenAIResponsesChatGenerator):
            assert kind(**self._asked).run([ChatMessage.from_user(QUESTION)])["replies"][0].text == ANSWER

    def stream(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        for kind in (OpenAIChatGenerator, OpenAIResponsesChatGenerator):
            parts: list[Any] = []
            kind(**self._asked, streaming_callback=parts.append).run([ChatMessage.from_user(QUESTION)])
            assert "".join(part.content or "" for part in parts) == ANSWER

    def agent(self) -> None:
        for kind in (OpenAIChatGenerator, OpenAIResponsesChatGenerator):
            follow(self._url, CALL, "It is wet.")
            agent = Agent(chat_generator=kind(**self._asked), tools=[weather])
            assert agent.run(messages=[ChatMessage.from_user(QUESTION)])["messages"][-1].text == "It is wet."
            assert ANSWER in said(self._url)[-1]


if __name__ == "__main__":
    sys.exit(main(Checks, "haystack-ai"))
