"""The `anthropic` package against a server: `python tests/clients/anthropic_sdk.py BASE_URL`."""

import asyncio
import sys
from typing import Any

import anthropic
from checks import key, main, raised

TOOL: Any = {
    "name": "weather",
    "description": "The weather in a town",
    "input_schema": {
        "type": "object",
        "properties": {"town": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
        "required": ["town", "unit"],
        "additionalProperties": False,
    },
}
USER: Any = {"role": "user", "content": "How is the weather in Rome?"}


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = anthropic.Anthropic(base_url=url, api_key=key(), max_retries=0)
        self._model = next(iter(self._client.models.list())).id

    def _ask(self, **fields: Any) -> dict[str, Any]:
        """Return the fields of a request."""
        return {"model": self._model, "max_tokens": 24, "messages": [USER], **fields}

    def _greedy(self, **fields: Any) -> dict[str, Any]:
        """Return the fields of a greedy request, for which the package has none from 2.12 on."""
        return self._ask(extra_body={"temperature": 0, "top_k": 20, "top_p": 0.9}, **fields)

    def create(self) -> None:
        message = self._client.messages.create(**self._ask(system="Be brief."))
        assert message.type == "message"
        assert message.role == "assistant"
        assert message.stop_reason in ("end_turn", "max_tokens")
        assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) > 0
        assert 0 < message.usage.output_tokens <= 24
        assert message._request_id

    def stream_equals_create(self) -> None:
        asked = self._greedy()
        # Both find the prompt in the prefix cache: in bfloat16 a miss may decide near ties otherwise.
        self._client.messages.create(**asked)
        whole = self._client.messages.create(**asked)
        with self._client.messages.stream(**asked) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        assert [block.type for block in final.content] == [block.type for block in whole.content]
        assert text == "".join(block.text for block in whole.content if block.type == "text")
        assert final.stop_reason == whole.stop_reason
        assert final.usage.output_tokens == whole.usage.output_tokens

    def raw_stream(self) -> None:
        kinds = [event.type for event in self._client.messages.create(**self._ask(stream=True))]
        assert kinds[0] == "message_start"
        assert kinds[-2:] == ["message_delta", "message_stop"]

    def prompt_cache(self) -> None:
        system: Any = [{"type": "text", "text": "Once upon a time. " * 20, "cache_control": {"type": "ephemeral"}}]
        asked = self._ask(system=system, max_tokens=4)
        first, second = (self._client.messages.create(**asked).usage for _ in range(2))
        assert (second.cache_read_input_tokens or 0) > 0
        total = [usage.input_tokens + (usage.cache_read_input_tokens or 0) for usage in (first, second)]
        assert total[0] == total[1]

    def stop_sequence(self) -> None:
        asked = self._greedy(max_tokens=16)
        text = "".join(block.text for block in self._client.messages.create(**asked).content if block.type == "text")
        sequence = text[len(text) // 2 :][:3]
        message = self._client.messages.create(**asked, stop_sequences=[sequence])
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", sequence)

    def tool_and_its_result(self) -> None:
        asked = self._ask(tools=[TOOL], max_tokens=60)
        message = self._client.messages.create(**asked, tool_choice={"type": "any", "disable_parallel_tool_use": True})
        (call,) = [block for block in message.content if block.type == "tool_use"]
        assert message.stop_reason == "tool_use"
        assert call.name == "weather"
        assert set(call.input) == {"town", "unit"}
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
        turns = [USER, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
        answer = self._client.messages.create(**self._ask(messages=turns, tools=[TOOL], tool_choice={"type": "none"}))
        assert [block.type for block in answer.content] == ["text"]

    def streamed_tool(self) -> None:
        asked = self._ask(tools=[TOOL], tool_choice={"type": "tool", "name": "weather"}, max_tokens=60)
        with self._client.messages.stream(**asked) as stream:
            pieces = [event.partial_json for event in stream if event.type == "input_json"]
            (call,) = stream.get_final_message().content
        assert len(pieces) > 1
        assert call.type == "tool_use"
        assert set(call.input) == {"town", "unit"}

    def output_format(self) -> None:
        form = {"type": "json_schema", "schema": TOOL["input_schema"]}
        message = self._client.messages.create(**self._ask(max_tokens=60, output_config={"format": form}))
        assert '"town"' in message.content[0].text

    def thinking(self) -> None:
        self._client.messages.create(**self._ask(max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024}))

    def beta(self) -> None:
        message = self._client.beta.messages.create(**self._ask(betas=["context-1m-2025-08-07"]))
        assert message.content

    def count_tokens(self) -> None:
        count = self._client.messages.count_tokens(model=self._model, messages=[USER], system="Be brief.")
        usage = self._client.messages.create(**self._ask(system="Be brief.")).usage
        assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)

    def many_at_once(self) -> None:
        async def run() -> None:
            async with anthropic.AsyncAnthropic(base_url=self._url, api_key=key(), max_retries=0) as client:
                await asyncio.gather(*(client.messages.create(**self._ask(max_tokens=8)) for _ in range(16)))
                async with client.messages.stream(**self._ask()) as stream:
                    assert [text async for text in stream.text_stream]

        asyncio.run(run())

    def closed_stream(self) -> None:
        with self._client.messages.stream(**self._ask(max_tokens=1000)) as stream:
            next(iter(stream))

    def errors(self) -> None:
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
        for kind, fields, said in (
            (anthropic.NotFoundError, {"model": "another"}, "not served here"),
            (anthropic.BadRequestError, {"messages": [{"role": "user", "content": [image]}]}, "'image'"),
            (anthropic.BadRequestError, {"messages": []}, "messages"),
            (anthropic.BadRequestError, {"system": "x " * 100_000}, "prompt is too long"),
        ):
            error = self._refused(self._client, **fields)
            assert type(error) is kind, error
            assert said in error.message, error.message
            assert error.request_id

    def wrong_key(self) -> None:
        if key() != "unused":
            error = self._refused(self._client.with_options(api_key="wrong"))
            assert type(error) is anthropic.AuthenticationError

    def _refused(self, client: anthropic.Anthropic, **fields: Any) -> anthropic.APIStatusError:
        """Return the error that the package raises."""
        return raised(anthropic.APIStatusError, lambda: client.messages.create(**self._ask(**fields)))


if __name__ == "__main__":
    sys.exit(main(Checks, "anthropic"))
