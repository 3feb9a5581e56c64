"""`langfuse` around the openai package, against a scripted server: `python tests/clients/langfuse_sdk.py BASE_URL`."""

import json
import os
import sys
from typing import Any

os.environ |= {"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk", "LANGFUSE_BASE_URL": "http://127.0.0.1:9"}

from checks import ANSWER, QUESTION, follow, key, main, model_of
from langfuse import Langfuse
from langfuse.openai import OpenAI
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

SPANS = InMemorySpanExporter()
Langfuse(span_exporter=SPANS)


class Checks:
    """Checks of the client: one method per check, run in this order. The spans stay in memory."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Any = OpenAI(base_url=f"{url}/v1", api_key=key(), max_retries=0)
        self._asked: Any = {"model": model_of(url), "messages": [{"role": "user", "content": QUESTION}]}

    def chat(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        assert self._client.chat.completions.create(**self._asked).choices[0].message.content == ANSWER
        self._has_span()

    def stream(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        parts = self._client.chat.completions.create(**self._asked, stream=True, stream_options={"include_usage": True})
        assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == ANSWER
        self._has_span()

    def responses(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        assert self._client.responses.create(model=self._asked["model"], input=QUESTION).output_text == ANSWER
        self._has_span()

    def _has_span(self) -> None:
        """Assert that the last request has a span with the text and the number of tokens."""
        Langfuse().flush()
        (span,) = SPANS.get_finished_spans()
        SPANS.clear()
        assert ANSWER in str(span.attributes["langfuse.observation.output"])
        usage = json.loads(str(span.attributes["langfuse.observation.usage_details"]))
        assert max(usage.get("completion_tokens", 0), usage.get("output_tokens", 0)) > 0, usage


if __name__ == "__main__":
    sys.exit(main(Checks, "langfuse"))
