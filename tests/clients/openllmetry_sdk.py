"""OpenLLMetry around the openai package, against a scripted server: `python tests/clients/openllmetry_sdk.py URL`."""

import sys
from typing import Any

from checks import ANSWER, QUESTION, follow, key, main, model_of
from openai import OpenAI
from opentelemetry.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

SPANS = InMemorySpanExporter()


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(SPANS))
        OpenAIInstrumentor().instrument(tracer_provider=provider)
        self._url = url
        self._client = OpenAI(base_url=f"{url}/v1", api_key=key(), max_retries=0)
        self._asked: Any = {"model": model_of(url), "messages": [{"role": "user", "content": QUESTION}]}

    def chat(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        assert self._client.chat.completions.create(**self._asked).choices[0].message.content == ANSWER
        self._has_span()

    def stream(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        options = {"include_usage": True}
        parts = list(self._client.chat.completions.create(**self._asked, stream=True, stream_options=options))
        assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == ANSWER
        self._has_span()

    def completion(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        assert self._client.completions.create(model=self._asked["model"], prompt=QUESTION).choices[0].text == ANSWER
        self._has_span()

    def responses(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        assert self._client.responses.create(model=self._asked["model"], input=QUESTION).output_text == ANSWER
        self._has_span()

    def _has_span(self) -> None:
        """Assert that the last request has a span with the model's name and the number of tokens."""
        (span,) = SPANS.get_finished_spans()
        SPANS.clear()
        attributes = dict(span.attributes or {})
        assert attributes["gen_ai.response.model"] == self._asked["model"], attributes
        assert int(str(attributes["gen_ai.usage.output_tokens"])) > 0, attributes


if __name__ == "__main__":
    sys.exit(main(Checks, "opentelemetry-instrumentation-openai"))
