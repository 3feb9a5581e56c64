"""`aisuite` against a scripted server: `python tests/clients/aisuite_sdk.py BASE_URL`."""

import sys
from typing import Any

import aisuite
from checks import ANSWER, CALL, QUESTION, WET, follow, key, main, model_of, said


def weather(town: str) -> str:
    """Tell the weather in a town."""
    return ANSWER


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, self._name = url, model_of(url)
        providers = {"openai": {"api_key": key(), "base_url": f"{url}/v1"}}
        self._client = aisuite.Client(providers | {"anthropic": {"api_key": key(), "base_url": url}})
        self._messages: Any = [{"role": "user", "content": QUESTION}]

    def chat(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        for provider in ("openai", "anthropic"):
            answer = self._client.chat.completions.create(f"{provider}:{self._name}", self._messages)
            assert answer.choices[0].message.content == ANSWER

    def stream(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        parts = self._client.chat.completions.create(f"openai:{self._name}", self._messages, stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == ANSWER

    def tool_and_its_result(self) -> None:
        for provider in ("openai", "anthropic"):
            follow(self._url, CALL, WET)
            asked: Any = {"tools": [weather], "max_turns": 3}
            answer = self._client.chat.completions.create(f"{provider}:{self._name}", self._messages, **asked)
            assert answer.choices[0].message.content == WET
            assert ANSWER in said(self._url)[-1]


if __name__ == "__main__":
    sys.exit(main(Checks, "aisuite"))
