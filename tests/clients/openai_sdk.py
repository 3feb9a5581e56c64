"""The `openai` package against a server: `python tests/clients/openai_sdk.py BASE_URL`."""

import asyncio
import json
import sys
from typing import Any, Literal

import openai
from checks import ANSWER, QUESTION, TOWN_SCHEMA, key, main, raised
from pydantic import BaseModel

USER: Any = {"role": "user", "content": QUESTION}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": TOWN_SCHEMA}}
FLAT_TOOL: Any = {"type": "function", "name": "weather", "parameters": TOWN_SCHEMA, "strict": True}


class Town(BaseModel):
    """Town in an answer."""

    town: Literal["Rome", "Oslo"]
    size: int


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._address: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": key(), "max_retries": 0}
        self._client = openai.OpenAI(**self._address)
        self._model = next(iter(self._client.models.list())).id
        self._few: dict[str, Any] = {"model": self._model, "max_tokens": 24, "temperature": 0}
        self._more = {**self._few, "max_tokens": 80}

    def completion(self) -> None:
        answer = self._client.completions.create(prompt="Once upon a time", **self._few, n=2, logprobs=2)
        assert len(answer.choices) == 2
        assert answer.usage is not None
        assert answer.usage.completion_tokens <= 48
        assert answer.choices[0].logprobs is not None

    def completion_stream(self) -> None:
        asked = {**self._few, "prompt": "Once upon a time"}
        text = "".join(part.choices[0].text for part in self._client.completions.create(**asked, stream=True))
        assert text == self._client.completions.create(**asked).choices[0].text

    def chat(self) -> None:
        answer = self._client.chat.completions.create(messages=[USER], **self._few, logprobs=True, top_logprobs=2)
        assert answer.choices[0].message.content
        assert answer.choices[0].finish_reason in ("stop", "length")
        assert answer._request_id

    def chat_stream_with_usage(self) -> None:
        asked = {**self._few, "messages": [USER]}
        parts = list(self._client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        whole = self._client.chat.completions.create(**asked)
        text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        assert text == whole.choices[0].message.content
        assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens

    def parse(self) -> None:
        answer = self._client.chat.completions.parse(messages=[USER], response_format=Town, **self._more)
        assert isinstance(answer.choices[0].message.parsed, Town)

    def json_object(self) -> None:
        form: Any = {"type": "json_object"}
        answer = self._client.chat.completions.create(messages=[USER], response_format=form, **self._more)
        assert (answer.choices[0].message.content or "").lstrip().startswith("{")

    def tool_and_its_result(self) -> None:
        asked = {**self._more, "tools": [TOOL]}
        message = (
            self._client.chat.completions.create(messages=[USER], tool_choice="required", **asked).choices[0].message
        )
        (call, *_) = message.tool_calls
        assert set(json.loads(call.function.arguments)) == {"town", "unit"}
        results = [{"role": "tool", "tool_call_id": call.id, "content": ANSWER} for call in message.tool_calls]
        answer = self._client.chat.completions.create(messages=[USER, message, *results], tool_choice="auto", **asked)
        assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")

    def tools_auto_accepted(self) -> None:
        answer = self._client.chat.completions.create(messages=[USER], tools=[TOOL], **self._more).choices[0]
        assert answer.message.content or answer.message.tool_calls

    def streamed_tool(self) -> None:
        choice: Any = {"type": "function", "function": {"name": "weather"}}
        asked = {
            **self._more,
            "messages": [USER],
            "tools": [{**TOOL, "function": {**TOOL["function"], "strict": True}}],
        }
        with self._client.chat.completions.stream(**asked, tool_choice=choice) as stream:
            pieces = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
            (call,) = stream.get_final_completion().choices[0].message.tool_calls or []
        assert len(pieces) > 1
        assert set(json.loads(call.function.arguments)) == {"town", "unit"}

    def responses(self) -> None:
        first = self._client.responses.create(model=self._model, input=QUESTION, max_output_tokens=24, temperature=0)
        asked: Any = {"model": self._model, "max_output_tokens": 24, "previous_response_id": first.id}
        with self._client.responses.stream(input="Why?", **asked) as stream:
            events = list(stream)
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        last = events[-1]  # get_final_response() fails on an answer that max_tokens cut off
        assert last.type in ("response.completed", "response.incomplete")
        assert text == last.response.output_text
        assert self._client.responses.retrieve(first.id).output_text == first.output_text
        assert list(self._client.responses.input_items.list(first.id))
        self._client.responses.delete(first.id)

    def responses_parse(self) -> None:
        answer = self._client.responses.parse(model=self._model, input=QUESTION, text_format=Town, max_output_tokens=80)
        assert isinstance(answer.output_parsed, Town)

    def responses_tool_and_its_result(self) -> None:
        asked: Any = {"model": self._model, "tools": [FLAT_TOOL], "max_output_tokens": 80}
        first = self._client.responses.create(input=QUESTION, tool_choice="required", **asked)
        calls = [item for item in first.output if item.type == "function_call"]
        results: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": ANSWER} for call in calls]
        answer = self._client.responses.create(input=results, previous_response_id=first.id, **asked)
        assert calls
        assert answer.output

    def many_at_once(self) -> None:
        async def run() -> None:
            async with openai.AsyncOpenAI(**self._address) as client:
                asked = [client.chat.completions.create(messages=[USER], **self._few) for _ in range(16)]
                assert len(await asyncio.gather(*asked)) == 16

        asyncio.run(run())

    def closed_stream(self) -> None:
        asked = {**self._few, "max_tokens": 1000}
        with self._client.chat.completions.create(messages=[USER], stream=True, **asked) as stream:
            next(iter(stream))

    def errors(self) -> None:
        def ask(**fields: Any) -> object:
            return self._client.chat.completions.create(**{"messages": [USER], **self._few, **fields})

        assert raised(openai.NotFoundError, lambda: ask(model="another")).code == "model_not_found"
        long: Any = [{"role": "user", "content": "x " * 100_000}]
        assert raised(openai.BadRequestError, lambda: ask(messages=long)).code == "context_length_exceeded"
        assert raised(openai.BadRequestError, lambda: ask(temperature=-1)).param == "temperature"
        if key() != "unused":
            wrong = self._client.with_options(api_key="wrong")
            raised(openai.AuthenticationError, lambda: wrong.chat.completions.create(messages=[USER], **self._few))


if __name__ == "__main__":
    sys.exit(main(Checks, "openai"))
