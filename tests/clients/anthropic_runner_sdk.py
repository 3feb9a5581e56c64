"""`anthropic`'s tool runner against a scripted server: `python tests/clients/anthropic_runner_sdk.py BASE_URL`."""

import asyncio
import sys
from typing import Any

import anthropic
from anthropic import beta_async_tool, beta_tool
from checks import ANSWER, CALL, QUESTION, WET, follow, key, main, model_of, said


@beta_tool
def weather(town: str) -> str:
    """Tell the weather in a town."""
    return ANSWER


@beta_async_tool(name="weather")
async def async_weather(town: str) -> str:
    """Tell the weather in a town."""
    return ANSWER


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._at: dict[str, Any] = {"base_url": url, "api_key": key(), "max_retries": 0}
        self._client = anthropic.Anthropic(**self._at)
        self._asked: Any = {
            "model": model_of(url),
            "max_tokens": 64,
            "messages": [{"role": "user", "content": QUESTION}],
        }

    def tool_runner(self) -> None:
        follow(self._url, CALL, WET)
        self._ended(self._client.beta.messages.tool_runner(**self._asked, tools=[weather]).until_done())

    def tool_runner_streamed(self) -> None:
        follow(self._url, CALL, WET)
        runner = self._client.beta.messages.tool_runner(**self._asked, tools=[weather], stream=True)
        for stream in runner:
            message = stream.get_final_message()
        self._ended(message)

    def tool_runner_async(self) -> None:
        follow(self._url, CALL, WET)

        async def run() -> Any:
            async with anthropic.AsyncAnthropic(**self._at) as client:
                return await client.beta.messages.tool_runner(**self._asked, tools=[async_weather]).until_done()

        self._ended(asyncio.run(run()))

    def another_turn(self) -> None:
        """History of a call, a result and an answer, beside a client-run tool and a hosted one."""
        follow(self._url, CALL, WET)
        tools = [
            weather,
            {"type": "bash_20250124", "name": "bash"},
            {"type": "web_search_20250305", "name": "web_search"},
        ]
        runner = self._client.beta.messages.tool_runner(**self._asked, tools=tools)
        self._ended(runner.until_done())
        history = [
            *self._asked["messages"],
            {"role": "assistant", "content": WET},
            {"role": "user", "content": "And now?"},
        ]
        follow(self._url, *["It is done."] * 9)
        runner = self._client.beta.messages.tool_runner(**{**self._asked, "messages": history}, tools=tools)
        assert runner.until_done().content[0].text == "It is done."
        assert WET in said(self._url)[-1]

    def _ended(self, message: Any) -> None:
        assert message.content[0].text == WET, message
        assert ANSWER in said(self._url)[-1]


if __name__ == "__main__":
    sys.exit(main(Checks, "anthropic"))
