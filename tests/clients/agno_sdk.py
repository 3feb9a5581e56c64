"""`agno` against a scripted server: `python tests/clients/agno_sdk.py BASE_URL`."""

import sys
from typing import Any

from agno.agent import Agent
from agno.models.openai import OpenAIChat, OpenAIResponses
from agno.models.openai.like import OpenAILike
from checks import ANSWER, QUESTION, follow, key, main, model_of, said


def weather(town: str) -> str:
    """Tell the weather in a town."""
    return ANSWER


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._asked: dict[str, Any] = {"id": model_of(url), "base_url": f"{url}/v1", "api_key": key()}

    def like_openai(self) -> None:
        self._loop(OpenAILike)

    def chat(self) -> None:
        self._loop(OpenAIChat)

    def responses(self) -> None:
        self._loop(OpenAIResponses)

    def _loop(self, kind: Any) -> None:
        for streams in (False, True):
            follow(self._url, {"name": "weather", "arguments": {"town": "Rome"}}, "It is wet.")
            agent = Agent(model=kind(**self._asked), tools=[weather], telemetry=False)
            if streams:
                text = "".join(str(part.content or "") for part in agent.run(QUESTION, stream=True))
            else:
                text = str(agent.run(QUESTION).content)
            assert "It is wet." in text, text
            assert ANSWER in said(self._url)[-1]


if __name__ == "__main__":
    sys.exit(main(Checks, "agno"))
