"""`smolagents` against a scripted server: `python tests/clients/smolagents_sdk.py BASE_URL`."""

import sys
from typing import Any

from checks import ANSWER, QUESTION, follow, key, main, model_of, said
from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

CALL = {"name": "weather", "arguments": {"town": "Rome"}}


@tool
def weather(town: str) -> str:
    """Tell the weather.

    Args:
        town: name of the town
    """
    return ANSWER


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._model = OpenAIModel(model_id=model_of(url), api_base=f"{url}/v1", api_key=key())

    def generate(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        messages: Any = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
        assert self._model.generate(messages).content == ANSWER
        assert "".join(part.content or "" for part in self._model.generate_stream(messages)) == ANSWER

    def tool_calling_agent(self) -> None:
        for streams in (False, True):
            follow(self._url, CALL, {"name": "final_answer", "arguments": {"answer": ANSWER}})
            agent = ToolCallingAgent(tools=[weather], model=self._model, stream_outputs=streams, max_steps=3)
            assert agent.run(QUESTION) == ANSWER
            assert len(said(self._url)) == 2

    def code_agent(self) -> None:
        follow(self._url, "I look.\n<code>\nfinal_answer(weather('Rome'))\n</code>", needs_tools=False)
        assert CodeAgent(tools=[weather], model=self._model, max_steps=2).run(QUESTION) == ANSWER


if __name__ == "__main__":
    sys.exit(main(Checks, "smolagents"))
