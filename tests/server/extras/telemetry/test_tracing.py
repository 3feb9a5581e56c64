"""A span per request: its trace, its times and what OpenTelemetry's GenAI conventions call its figures."""

import contextlib
import socket
import subprocess
import sys
import threading
import time

import pytest
from answering import answering, read_body, reply
from fake_engine import FakeEngine
from serving import ready_client
from starlette.datastructures import Headers

from splitfuse.engine.errors import ConfigError
from splitfuse.server.app import build_app
from splitfuse.server.extras.telemetry.request_ends import RequestRecord
from splitfuse.server.extras.telemetry.tracing import RequestTracer, otlp_tracer
from splitfuse.server.settings import Settings

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
REASON = "needs the extra otel: pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"


@pytest.fixture
def spans(monkeypatch):
    """Return the spans that a server has sent, once it has ended."""
    export = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter", reason=REASON)
    exporter = export.InMemorySpanExporter()
    tracer = RequestTracer(exporter, model_name="m", version="1", clock=lambda: 100.0, wall_clock=lambda: 1100.0)
    monkeypatch.setattr("splitfuse.server.extras.telemetry.part.listeners_of", lambda settings: [tracer])
    return exporter.get_finished_spans


async def answered(path, body, headers=None):
    app = build_app(Settings(request_log=False, otlp_traces_endpoint="http://localhost:9"), FakeEngine())
    async with ready_client(app) as client:
        await client.post(path, json=body, headers=headers)


async def test_a_request_is_a_span_in_its_callers_trace(spans):
    body = {"messages": [{"role": "user", "content": "TEXT"}], "max_tokens": 3, "stream": True}
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"}
    await answered("/v1/chat/completions", body, headers)
    *children, span = sorted(spans(), key=lambda found: found.name == "chat m")
    assert (span.name, span.kind.name) == ("chat m", "SERVER")
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    attributes = dict(span.attributes)
    assert attributes.pop("gen_ai.latency.e2e") >= attributes.pop("gen_ai.latency.time_to_first_token") >= 0
    assert attributes.pop("gen_ai.latency.time_in_queue") >= 0
    assert attributes == {
        "gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.request.id": "mine",
        "gen_ai.response.finish_reasons": ("length",), "gen_ai.usage.input_tokens": len("<user>TEXT\n<assistant>"),
        "gen_ai.usage.cache_read.input_tokens": 2, "gen_ai.usage.output_tokens": 3, "http.request.method": "POST",
        "http.route": "/v1/chat/completions", "http.response.status_code": 200,
    }  # fmt: skip
    assert sorted(child.name for child in children) == ["decode", "prefill", "queue"]
    for child in children:
        assert child.parent.span_id == span.context.span_id
        assert span.start_time <= child.start_time <= child.end_time <= span.end_time


async def test_a_refused_request_is_a_span_without_children(spans):
    await answered("/generate", {"prompt": ""})
    (span,) = spans()
    assert (span.name, span.parent, span.attributes["http.response.status_code"]) == ("text_completion m", None, 400)


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match="pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"):
        build_app(Settings(otlp_traces_endpoint="http://127.0.0.1:4318/v1/traces"))


def send_span_to(answer):
    """Send one span to a server that answers by this function."""
    with answering(answer) as url:
        tracer = otlp_tracer(url, model_name="a-model", version="1")
        tracer.on_request_end(RequestRecord("id", Headers({}), 1.0, route="/generate", status=200, end=2.0))
        tracer.close()


def test_spans_reach_the_endpoint():
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter", reason=REASON)
    received = []

    def receive(request):
        received.append((request.path, read_body(request)))
        reply(request)

    send_span_to(receive)
    ((path, body),) = received
    assert path == "/v1/traces"
    assert b"text_completion a-model" in body


def test_an_endless_answer_takes_no_memory_and_no_time(monkeypatch):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter", reason=REASON)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    num_bytes, asked = 0, []

    def receive(request):
        nonlocal num_bytes
        asked.append(request.path)
        read_body(request)
        reply(request, Content_Length=10**9)
        with contextlib.suppress(OSError):
            for _ in range(1000):
                request.wfile.write(bytes(10**6))
                num_bytes += 10**6

    send_span_to(receive)
    assert asked == ["/v1/traces"]
    assert num_bytes < 50 * 10**6, "what the kernel's buffers hold"


def test_a_receiver_that_hangs_does_not_hold_the_end(monkeypatch):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter", reason=REASON)
    monkeypatch.setattr("splitfuse.server.extras.telemetry.tracing._CLOSE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        tracer = otlp_tracer(f"http://127.0.0.1:{hanging.getsockname()[1]}", model_name="a-model", version="1")
        tracer.on_request_end(RequestRecord("id", Headers({}), 1.0, route="/generate", status=200, end=2.0))
        began = time.monotonic()
        tracer.close()
        assert time.monotonic() - began < 9, "not the 10 s that the exporter has"
    for thread in threading.enumerate():
        if thread.name.startswith("Otel"):
            thread.join(60)
            assert not thread.is_alive()


def test_nothing_of_it_is_imported_without_the_flag():
    program = (
        "import sys; from splitfuse.server.app import build_app; from splitfuse.server.settings import Settings\n"
        "build_app(Settings()); names = ('opentelemetry.sdk', 'splitfuse.server.extras.telemetry.tracing')\n"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
