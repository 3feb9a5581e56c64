"""`portkey-ai` against a scripted server: `python tests/clients/portkey_sdk.py BASE_URL`."""

import sys
from typing import Any

from checks import ANSWER, CALL, QUESTION, WET, follow, key, main, model_of, said
from portkey_ai import Portkey

PARAMETERS = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}


class Checks:
    """Checks of the client, whose gateway is the server: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = Portkey(
            base_url=f"{url}/v1", provider="openai", api_key="portkey", Authorization=f"Bearer {key()}"
        )
        self._asked: Any = {"model": model_of(url), "messages": [{"role": "user", "content": QUESTION}]}

    def chat(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        assert self._client.chat.completions.create(**self._asked).choices[0].message.content == ANSWER

    def stream(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        parts = self._client.chat.completions.create(**self._asked, stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == ANSWER

    def responses(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        answer = self._client.responses.create(model=self._asked["model"], input=QUESTION)
        assert answer.output_text == ANSWER

    def tool_and_its_result(self) -> None:
        follow(self._url, CALL, WET)
        message = self._client.chat.completions.create(**self._asked, tools=[TOOL]).choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": ANSWER}
        messages = [*self._asked["messages"], message.model_dump(exclude_none=True), result]
        answer = self._client.chat.completions.create(**{**self._asked, "messages": messages}, tools=[TOOL])
        assert answer.choices[0].message.content == WET
        assert ANSWER in said(self._url)[-1]


if __name__ == "__main__":
    sys.exit(main(Checks, "portkey-ai"))
