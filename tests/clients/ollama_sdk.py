"""The `ollama` package against a server: `python tests/clients/ollama_sdk.py BASE_URL`."""

import asyncio
import sys
from typing import Any

import ollama
from checks import key, main, raised

USER: Any = {"role": "user", "content": "How is the weather in Rome?"}
SCHEMA: Any = {
    "type": "object",
    "properties": {"town": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
    "required": ["town", "unit"],
    "additionalProperties": False,
}
FEW: Any = {"num_predict": 24, "temperature": 0, "num_ctx": 2048}


def weather(town: str) -> str:
    """The weather in a town.

    Args:
      town: its name
    """
    return f"rain in {town}"


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._address: dict[str, Any] = {"host": url, "headers": {"Authorization": f"Bearer {key()}"}}
        self._client = ollama.Client(**self._address)
        self._model = self._client.list().models[0].model or ""

    def list_ps_show(self) -> None:
        details = self._client.show(self._model)
        assert "completion" in (details.capabilities or [])
        assert details.modelinfo
        process = self._client.ps().models[0]
        assert process.model == self._model
        assert (process.context_length or 0) > 0

    def chat(self) -> None:
        answer = self._client.chat(self._model, [USER], options=FEW, keep_alive="5m")
        assert answer.done
        assert answer.message.role == "assistant"
        assert 0 < (answer.eval_count or 0) <= 24
        assert (answer.prompt_eval_count or 0) > 0
        assert (answer.total_duration or 0) >= (answer.eval_duration or 0) > 0

    def stream_equals_chat(self) -> None:
        self._client.chat(self._model, [USER], options=FEW)  # like `generate`
        parts = list(self._client.chat(self._model, [USER], options=FEW, stream=True))
        assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
        text = "".join(part.message.content or "" for part in parts)
        assert text == self._client.chat(self._model, [USER], options=FEW).message.content

    def generate(self) -> None:
        for more in ({}, {"system": "Be brief."}, {"raw": True}):
            # Both find the prompt in the prefix cache: in bfloat16 a miss may decide near ties otherwise.
            self._client.generate(self._model, "Once upon a time", options=FEW, **more)
            whole = self._client.generate(self._model, "Once upon a time", options=FEW, **more)
            parts = self._client.generate(self._model, "Once upon a time", options=FEW, stream=True, **more)
            assert whole.response == "".join(part.response or "" for part in parts)

    def stop(self) -> None:
        text = self._client.generate(self._model, "Once upon a time", raw=True, options=FEW).response or ""
        stop = text[len(text) // 2 :][:3]
        answer = self._client.generate(self._model, "Once upon a time", raw=True, options={**FEW, "stop": [stop]})
        assert answer.done_reason == "stop"
        assert stop not in (answer.response or "")

    def formats(self) -> None:
        options = {**FEW, "num_predict": 100}
        answer = self._client.chat(self._model, [USER], format=SCHEMA, options=options)
        assert '"town"' in (answer.message.content or "")
        some = self._client.generate(self._model, "A town:", format="json", options=options).response or ""
        assert some.lstrip().startswith(("{", "["))

    def tools_none_called(self) -> None:
        turns: Any = [
            USER,
            {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {"town": "Rome"}}}]},
            {"role": "tool", "tool_name": "weather", "content": weather("Rome")},
        ]
        assert self._client.chat(self._model, turns, options=FEW).message.content

    def tools_auto_accepted(self) -> None:
        self._client.chat(self._model, [USER], tools=[weather], options=FEW)

    def think(self) -> None:
        for think in (True, False, "low"):
            self._client.chat(self._model, [USER], think=think, options=FEW)

    def load(self) -> None:
        assert self._client.generate(self._model).done_reason == "load"

    def many_at_once(self) -> None:
        async def run() -> None:
            client = ollama.AsyncClient(**self._address)
            await asyncio.gather(*(client.chat(self._model, [USER], options=FEW) for _ in range(16)))
            stream = await client.chat(self._model, [USER], options=FEW, stream=True)
            assert [part async for part in stream][-1].done

        asyncio.run(run())

    def errors(self) -> None:
        for call, status, said in (
            (lambda: self._client.chat("another", [USER]), 404, "not served here"),
            (lambda: self._client.chat(self._model, [USER], options={"temperature": -1}), 400, "options.temperature"),
            (lambda: self._client.pull("llama3.2"), 400, "pull is not supported"),
            (lambda: self._client.embed(self._model, "x"), 400, "embed is not supported"),
            (lambda: list(self._client.chat("another", [USER], stream=True)), 404, "not served here"),
        ):
            error = raised(ollama.ResponseError, call)
            assert error.status_code == status, error
            assert said in error.error, error


if __name__ == "__main__":
    sys.exit(main(Checks, "ollama"))
