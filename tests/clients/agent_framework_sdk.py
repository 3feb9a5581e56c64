"""Microsoft's `agent-framework` against a scripted server: `python tests/clients/agent_framework_sdk.py BASE_URL`."""

import asyncio
import sys
from typing import Any

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from checks import ANSWER, QUESTION, follow, key, main, model_of, said


def weather(town: str) -> str:
    """Tell the weather in a town."""
    return ANSWER


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._asked: dict[str, Any] = {"model": model_of(url), "base_url": f"{url}/v1", "api_key": key()}

    def chat(self) -> None:
        self._loop(OpenAIChatCompletionClient)

    def responses(self) -> None:
        self._loop(OpenAIChatClient)

    def _loop(self, kind: Any) -> None:
        async def text(*, streams: bool) -> str:
            agent = Agent(client=kind(**self._asked), tools=[weather])
            if streams:
                return (await agent.run(QUESTION, stream=True).get_final_response()).text
            return (await agent.run(QUESTION)).text

        for streams in (False, True):
            follow(self._url, {"name": "weather", "arguments": {"town": "Rome"}}, "It is wet.")
            assert asyncio.run(text(streams=streams)) == "It is wet."
            assert ANSWER in said(self._url)[-1]


if __name__ == "__main__":
    sys.exit(main(Checks, "agent-framework-core"))
