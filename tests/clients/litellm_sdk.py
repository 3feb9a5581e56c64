"""The `litellm` package against a server: `python tests/clients/litellm_sdk.py BASE_URL`."""

import asyncio
import json
import sys
from typing import Any

import litellm
from checks import ANSWER, QUESTION, TOWN_SCHEMA, key, main, model_of, raised

USER: Any = {"role": "user", "content": QUESTION}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": TOWN_SCHEMA}}


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._name = model_of(url)
        self._few: dict[str, Any] = {"api_base": f"{url}/v1", "api_key": key(), "max_tokens": 24, "temperature": 0}
        self._more = {**self._few, "max_tokens": 80}

    def providers(self) -> None:
        for provider in ("openai", "hosted_vllm"):
            answer = litellm.completion(f"{provider}/{self._name}", [USER], **self._few)
            assert answer.choices[0].message.content, provider
            assert answer.usage.completion_tokens <= 24

    def text_completion(self) -> None:
        model = f"text-completion-openai/{self._name}"
        assert litellm.text_completion(prompt="Once", model=model, **self._few).choices[0].text

    def stream_with_usage(self) -> None:
        options = {"include_usage": True}
        parts = list(litellm.completion(self._model, [USER], stream=True, stream_options=options, **self._few))
        whole = litellm.completion(self._model, [USER], **self._few)
        text = "".join(choice.delta.content or "" for part in parts for choice in part.choices)
        assert text == whole.choices[0].message.content
        assert litellm.stream_chunk_builder(parts).usage.completion_tokens == whole.usage.completion_tokens

    def response_format(self) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "town", "schema": TOWN_SCHEMA, "strict": True}}
        answer = litellm.completion(self._model, [USER], response_format=form, **self._more)
        assert set(json.loads(answer.choices[0].message.content)) == {"town", "unit"}

    def tool_and_its_result(self) -> None:
        asked = {**self._more, "tools": [TOOL]}
        call = litellm.completion(self._model, [USER], tool_choice="required", **asked).choices[0].message
        assert set(json.loads(call.tool_calls[0].function.arguments)) == {"town", "unit"}
        results = [{"role": "tool", "tool_call_id": one.id, "content": ANSWER} for one in call.tool_calls]
        assert litellm.completion(self._model, [USER, call, *results], **asked).choices

    def responses(self) -> None:
        asked = {"api_base": self._few["api_base"], "api_key": key(), "max_output_tokens": 24}
        assert litellm.responses(model=self._model, input=QUESTION, **asked).output

    def anthropic_messages(self) -> None:
        answer = asyncio.run(litellm.anthropic.messages.acreate(model=self._model, messages=[USER], **self._few))
        assert answer["content"]

    def many_at_once(self) -> None:
        async def run() -> None:
            await asyncio.gather(*(litellm.acompletion(self._model, [USER], **self._few) for _ in range(16)))

        asyncio.run(run())

    def errors(self) -> None:
        def ask(**fields: Any) -> object:
            return litellm.completion(**{"model": self._model, "messages": [USER], **self._few, **fields})

        raised(litellm.NotFoundError, lambda: ask(model="openai/another"))
        raised(litellm.BadRequestError, lambda: ask(temperature=-1))
        long = [{"role": "user", "content": "x " * 100_000}]
        for model in (self._model, f"hosted_vllm/{self._name}"):
            raised(litellm.ContextWindowExceededError, lambda model=model: ask(model=model, messages=long))
        if key() != "unused":
            raised(litellm.AuthenticationError, lambda: ask(api_key="wrong"))

    @property
    def _model(self) -> str:
        return f"openai/{self._name}"


if __name__ == "__main__":
    sys.exit(main(Checks, "litellm"))
