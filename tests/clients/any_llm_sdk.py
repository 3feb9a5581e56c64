"""`any-llm-sdk` against a scripted server: `python tests/clients/any_llm_sdk.py BASE_URL`."""

import sys
from typing import Any

import any_llm
from checks import ANSWER, CALL, QUESTION, WET, follow, key, main, model_of, said

PROVIDERS = ("openai", "vllm", "llamacpp", "openrouter")


def weather(town: str) -> str:
    """Tell the weather in a town.

    Args:
        town: Its name.
    """
    return ANSWER


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, self._name = url, model_of(url)
        self._at: dict[str, Any] = {"api_key": key(), "api_base": f"{url}/v1"}
        self._asked = {"model": self._name, "messages": [{"role": "user", "content": QUESTION}], **self._at}

    def providers(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        for provider in PROVIDERS:
            answer: Any = any_llm.completion(provider=provider, **self._asked)
            assert answer.choices[0].message.content == ANSWER, provider

    def stream(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        for provider in PROVIDERS:
            parts: Any = any_llm.completion(provider=provider, stream=True, **self._asked)
            text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
            assert text == ANSWER, provider

    def responses(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        answer: Any = any_llm.responses(provider="openai", model=self._name, input_data=QUESTION, **self._at)
        assert answer.output[-1].content[0].text == ANSWER

    def messages(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        at = {"api_key": key(), "api_base": self._url}
        asked = {**self._asked, **at, "max_tokens": 64}
        answer: Any = any_llm.messages(provider="anthropic", **asked)
        assert answer.content[0].text == ANSWER

    def tool_and_its_result(self) -> None:
        follow(self._url, CALL, WET)
        first: Any = any_llm.completion(provider="vllm", tools=[weather], **self._asked)
        message = first.choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": ANSWER}
        messages = [*self._asked["messages"], message, result]
        last: Any = any_llm.completion(provider="vllm", tools=[weather], **{**self._asked, "messages": messages})
        assert last.choices[0].message.content == WET
        assert ANSWER in said(self._url)[-1]

    def list_models(self) -> None:
        assert any_llm.list_models("openai", **self._at)[0].id == self._name


if __name__ == "__main__":
    sys.exit(main(Checks, "any-llm-sdk"))
