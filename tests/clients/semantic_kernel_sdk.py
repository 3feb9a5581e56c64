"""`semantic-kernel` against a scripted server: `python tests/clients/semantic_kernel_sdk.py BASE_URL`."""

import asyncio
import sys

from checks import ANSWER, QUESTION, follow, key, main, model_of, said
from openai import AsyncOpenAI
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function


class Weather:
    """Plugin with one function."""

    @kernel_function
    def of(self, town: str) -> str:
        """Tell the weather in a town."""
        return ANSWER


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, self._name = url, model_of(url)

    def agent(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        assert str(asyncio.run(self._agent().get_response(messages=QUESTION))) == ANSWER

    def agent_and_its_plugin(self) -> None:
        follow(self._url, {"name": "Weather-of", "arguments": {"town": "Rome"}}, "It is wet.")
        assert str(asyncio.run(self._agent(Weather()).get_response(messages=QUESTION))) == "It is wet."
        assert ANSWER in said(self._url)[-1]

    def streamed(self) -> None:
        async def text() -> str:
            return "".join(
                [str(part.content) async for part in self._agent(Weather()).invoke_stream(messages=QUESTION)]
            )

        follow(self._url, {"name": "Weather-of", "arguments": {"town": "Rome"}}, "It is wet.")
        assert asyncio.run(text()) == "It is wet.", said(self._url)

    def _agent(self, *plugins: object) -> ChatCompletionAgent:
        client = AsyncOpenAI(base_url=f"{self._url}/v1", api_key=key(), max_retries=0)
        service = OpenAIChatCompletion(ai_model_id=self._name, async_client=client)
        return ChatCompletionAgent(service=service, name="helper", plugins=[*plugins])


if __name__ == "__main__":
    sys.exit(main(Checks, "semantic-kernel"))
