"""RequestTracer: a span per request by OpenTelemetry, sent by OTLP over HTTP. Needs the extra `otel`.

The span continues the trace named in the request's `traceparent`. Attributes follow OpenTelemetry's GenAI conventions;
latencies have vLLM's names.
"""

import importlib
import io
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ....engine.errors import ConfigError
from .request_ends import RequestRecord
from .request_figures import RequestFigures, first_metrics

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_PATH = "/v1/traces"
_SEND_S = 10.0  # for one batch of spans with its retries; a receiver that dribbles has this long for every piece
_CLOSE_S = 10.0
_OPERATIONS = {"/v1/chat/completions": "chat", "/v1/messages": "chat", "/v1/responses": "chat", "/api/chat": "chat"}


class RequestTracer:
    """RequestListener that sends spans from a thread of the SDK. Spans that cannot be sent are dropped."""

    def __init__(
        self,
        exporter: "SpanExporter",
        *,
        model_name: str,
        version: str,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._model_name = model_name
        self._clock = clock
        self._wall_clock = wall_clock
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "splitfuse", "service.version": version})
        )
        self._exporter = exporter
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("splitfuse", version)
        self._propagator = TraceContextTextMapPropagator()

    def on_request_end(self, record: RequestRecord) -> None:
        """Create the request's span, with a child each for queue, prefill and decode."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        shift = self._wall_clock() - self._clock()

        def nanoseconds(when: float) -> int:
            return int((when + shift) * 1e9)

        operation = _OPERATIONS.get(record.route, "text_completion")
        span = self._tracer.start_span(
            f"{operation} {self._model_name}",
            context=self._propagator.extract(record.headers),
            kind=SpanKind.SERVER,
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.request.model": self._model_name,
                **_attributes(record),
            },
            start_time=nanoseconds(record.arrival),
        )
        for name, start, end in _phases(record):
            child = self._tracer.start_span(
                name, context=set_span_in_context(span), start_time=nanoseconds(start), kind=SpanKind.INTERNAL
            )
            child.end(nanoseconds(end))
        span.end(nanoseconds(record.end))

    def close(self) -> None:
        """Send the remaining spans. May wait 10 s for the receiver, so not for an event loop."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)  # the SDK itself waits up to 30 s
        closing.start()
        closing.join(_CLOSE_S)
        if closing.is_alive():
            self._exporter.shutdown()  # no more tries


def otlp_tracer(endpoint: str, *, model_name: str, version: str) -> RequestTracer:
    """Create a tracer that sends to this URL, with OTLP's own path if it has none.

    Raises ConfigError without the extra.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        url = endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + _PATH
        exporter = OTLPSpanExporter(endpoint=url, timeout=_SEND_S, session=_session())
        return RequestTracer(exporter, model_name=model_name, version=version)
    except ImportError as exc:
        raise ConfigError(
            f"--otlp-traces-endpoint ({exc}): pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        ) from exc


def _session() -> Any:
    """Make a session of `requests` that reads no bodies, follows no redirect and asks no proxy of the environment."""
    session = importlib.import_module("requests").Session()
    session.trust_env = False
    session.max_redirects = 0
    session.stream = True
    session.hooks["response"].append(_close_at_status)
    return session


def _close_at_status(response: Any, **_: Any) -> None:
    response.close()
    response.raw = io.BytesIO()  # an empty body


def _attributes(record: RequestRecord) -> dict[str, Any]:
    figures = RequestFigures.of(record)
    attributes = {
        "http.request.method": "POST",
        "http.route": record.route,
        "http.response.status_code": record.status,
        "gen_ai.request.id": record.request_id,
        "gen_ai.response.finish_reasons": figures.finish_reasons,
        "gen_ai.usage.input_tokens": figures.num_prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": figures.num_cached_tokens,
        "gen_ai.usage.output_tokens": figures.num_output_tokens,
        "gen_ai.latency.time_in_queue": figures.queue_s,
        "gen_ai.latency.time_to_first_token": figures.ttft_s,
        "gen_ai.latency.e2e": figures.total_s,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _phases(record: RequestRecord) -> Iterator[tuple[str, float, float]]:
    """Yield queue, prefill and decode of the first output, as far as it came."""
    if (metrics := first_metrics(record)) is None:
        return
    times = (metrics.arrival_time, metrics.first_scheduled_time, metrics.first_token_time, metrics.finished_time)
    for name, start, end in zip(("queue", "prefill", "decode"), times, times[1:], strict=False):
        if start is not None and end is not None:
            yield name, start, end
