"""`huggingface_hub.InferenceClient` against a server: `python tests/clients/huggingface_hub_sdk.py BASE_URL`."""

import asyncio
import json
import sys
from typing import Any

from checks import ANSWER, QUESTION, TOWN_SCHEMA, key, main, model_of, raised
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError

USER: Any = {"role": "user", "content": QUESTION}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": TOWN_SCHEMA}}


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, self._client = url, InferenceClient(base_url=url, api_key=key())
        self._few: dict[str, Any] = {"model": model_of(url), "max_tokens": 24, "temperature": 0}

    def chat(self) -> None:
        answer = self._client.chat_completion([USER], **self._few)
        assert answer.choices[0].message.content
        assert answer.usage.completion_tokens <= 24

    def openai_names(self) -> None:
        assert self._client.chat.completions.create([USER], **self._few).choices

    def stream(self) -> None:
        options: Any = {"include_usage": True}
        parts = list(self._client.chat_completion([USER], stream=True, stream_options=options, **self._few))
        text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        assert text == self._client.chat_completion([USER], **self._few).choices[0].message.content
        assert parts[-1].usage.completion_tokens > 0

    def response_formats(self) -> None:
        shape = {"name": "town", "schema": TOWN_SCHEMA, "strict": True}
        forms: list[Any] = [
            {"type": "json_schema", "json_schema": shape},
            {"type": "json_object", "value": TOWN_SCHEMA},  # TGI's form
        ]
        for form in forms:
            answer = self._client.chat_completion([USER], response_format=form, **{**self._few, "max_tokens": 80})
            assert set(json.loads(answer.choices[0].message.content or "")) == {"town", "unit"}

    def tool_and_its_result(self) -> None:
        asked = {**self._few, "max_tokens": 80, "tools": [TOOL]}
        message = self._client.chat_completion([USER], tool_choice="required", **asked).choices[0].message
        arguments: Any = message.tool_calls[0].function.arguments
        assert set(json.loads(arguments)) == {"town", "unit"}
        results = [{"role": "tool", "tool_call_id": call.id, "content": ANSWER} for call in message.tool_calls]
        assert self._client.chat_completion([USER, message, *results], tool_choice="auto", **asked).choices

    def many_at_once(self) -> None:
        async def run() -> None:
            async with AsyncInferenceClient(base_url=self._url, api_key=key()) as client:
                await asyncio.gather(*(client.chat_completion([USER], **self._few) for _ in range(16)))

        asyncio.run(run())

    def errors(self) -> None:
        asked = {**self._few, "model": "another"}
        error = raised(HfHubHTTPError, lambda: self._client.chat_completion([USER], **asked))
        assert error.response.status_code == 404
        assert "not served here" in str(error)


if __name__ == "__main__":
    sys.exit(main(Checks, "huggingface_hub"))
