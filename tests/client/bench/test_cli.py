"""The load generator: its stopwatch, its pace, and whole runs against a small OpenAI-shaped server."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from splitfuse.client.bench import cli
from splitfuse.client.bench.cli import drive
from splitfuse.client.bench.latency import Outcome
from splitfuse.client.bench.openai_stream import Stopwatch, Target, measure
from splitfuse.client.bench.workload import LoadRequest

from ..server_thread import ServerThread


def text_chunk(text: str, reason: str | None = None) -> dict[str, Any]:
    """Return a chunk of /v1/completions."""
    return {"choices": [{"index": 0, "text": text, "finish_reason": reason}], "usage": None}


def chat_chunk(delta: dict[str, str], reason: str | None = None) -> dict[str, Any]:
    """Return a chunk of /v1/chat/completions."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def timed(*chunks: tuple[float, dict[str, Any]]) -> Outcome:
    """Return the outcome of a request sent at 10.0 whose chunks came at those times."""
    watch = Stopwatch(10.0)
    for at, chunk in chunks:
        watch.note(chunk, at)
    return watch.outcome(prompt_len=7)


USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}


def test_the_stopwatch_times_a_completion() -> None:
    outcome = timed(
        (10.5, text_chunk("a")), (10.75, text_chunk("")), (11.0, text_chunk("bc")), (11.5, text_chunk("d", "length")),
        (12.0, USAGE),
    )  # fmt: skip
    assert outcome == Outcome(prompt_len=9, output_len=4, ttft=0.5, itls=[0.25, 0.25, 0.5], e2el=1.5)


def test_a_role_and_an_end_are_not_output() -> None:
    outcome = timed(
        (10.1, chat_chunk({"role": "assistant", "content": ""})), (10.5, chat_chunk({"content": "a"})),
        (10.75, chat_chunk({"content": "b"})), (11.0, chat_chunk({}, "stop")), (12.0, USAGE),
    )  # fmt: skip
    assert outcome == Outcome(prompt_len=9, output_len=4, ttft=0.5, itls=[0.25], e2el=0.75)


def test_without_usage_chunks_are_counted() -> None:
    outcome = timed((10.5, text_chunk("a")), (11.0, text_chunk("b")), (11.0, text_chunk("", "stop")))
    assert (outcome.prompt_len, outcome.output_len) == (7, 2)


def test_tokens_that_make_no_text_end_the_request_all_the_same() -> None:
    outcome = timed((10.5, chat_chunk({}, "length")), (11.0, USAGE))
    assert (outcome.output_len, outcome.ttft, outcome.e2el) == (4, 0.5, 0.5)


def test_an_error_in_the_stream_and_silence_are_failures() -> None:
    assert timed((10.5, text_chunk("a")), (11.0, {"error": {"message": "it broke"}})).error == "it broke"
    assert timed((11.0, {"error": "plain"})).error == "plain"
    assert timed().error == "the stream ended without any output"


REQUESTS = [LoadRequest([1], 1, 1, arrival=float(at)) for at in (0, 2, 3)]


async def test_requests_are_sent_when_they_arrive() -> None:
    now, sent = 50.0, []

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    async def send(request: LoadRequest) -> Outcome:
        sent.append((now, request.arrival))
        return Outcome(prompt_len=1, output_len=len(sent))

    outcomes, duration = await drive(REQUESTS, send, clock=lambda: now, sleep=sleep)
    assert [arrival for _, arrival in sent] == [0.0, 2.0, 3.0]
    assert [outcome.output_len for outcome in outcomes] == [1, 2, 3]
    assert duration == 3.0


async def test_a_closed_loop_keeps_its_bound() -> None:
    running, most = 0, 0

    async def send(request: LoadRequest) -> Outcome:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return Outcome(prompt_len=1)

    outcomes, _ = await drive([LoadRequest([1], 1, 1)] * 20, send, max_concurrency=3)
    assert (len(outcomes), most) == (20, 3)


@dataclass
class Model:
    """OpenAI-shaped server whose answers have exactly max_tokens tokens."""

    card: dict[str, Any] = field(default_factory=lambda: {"id": "tiny", "max_model_len": 64, "vocab_size": 120})
    bodies: list[dict[str, Any]] = field(default_factory=list)
    refused: int = 0  # number of requests that are refused after the warm-up
    key: str = ""  # required of requests
    url: str = ""

    def app(self) -> Starlette:
        """Return the application of the server."""
        paths = ("/v1/completions", "/v1/chat/completions")
        routes = [Route(path, self._complete, methods=["POST"]) for path in paths]
        return Starlette(routes=[Route("/v1/models", self._models), *routes])

    async def _models(self, request: Request) -> Response:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return JSONResponse({"error": {"message": "no"}}, 401)
        return JSONResponse({"data": [self.card]} if self.card else {"detail": "?"})

    async def _complete(self, request: Request) -> Response:
        self.bodies.append(json.loads(await request.body()))
        if 0 < len(self.bodies) - 1 <= self.refused:
            return JSONResponse({"error": {"message": "no room"}}, 429)
        return StreamingResponse(self._chunks(self.bodies[-1]), media_type="text/event-stream")

    async def _chunks(self, body: dict[str, Any]) -> AsyncIterator[str]:
        count = body.get("max_tokens") or body["max_completion_tokens"]
        for _ in range(count):
            chunk = text_chunk("a") if "prompt" in body else chat_chunk({"content": "a"})
            yield f"data: {json.dumps(chunk)}\n\n"
        usage = {"prompt_tokens": len(body.get("prompt", [])), "completion_tokens": count}
        yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"


@pytest.fixture
def model() -> Iterator[Model]:
    """Start the server."""
    model = Model()
    with ServerThread(model.app()) as server:
        model.url = server.url
        yield model


SMALL = ["--num-prompts", "5", "--random-input-len", "8", "--random-output-len", "4"]


def test_a_run_prints_the_table_and_saves_the_result(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "BUSY_SHARE", math.inf)  # a run of milliseconds may take a whole core
    path = tmp_path / "result.json"
    argv = ["--base-url", model.url, *SMALL, "--goodput", "ttft:60000", "tpot:60000", "--save-result", str(path)]
    assert cli.main(argv) == 0
    out, err = capsys.readouterr()
    assert "Serving Benchmark Result" in out
    assert "by the server" not in out, "it has no /metrics"
    assert "Mean E2EL (ms):" in out
    assert err == ""
    saved = json.loads(path.read_text())
    assert (saved["completed"], saved["total_input_tokens"], saved["total_output_tokens"]) == (5, 40, 20)
    assert saved["request_goodput"] == saved["request_throughput"]
    assert (saved["model_id"], saved["request_rate"], saved["num_prompts"]) == ("tiny", "inf", 5)


def test_what_a_run_sends(model: Model) -> None:
    assert cli.main(["--base-url", model.url, *SMALL, "--ignore-eos", "--max-concurrency", "2"]) == 0
    assert len(model.bodies) == 1 + 5
    assert len({tuple(body["prompt"]) for body in model.bodies}) == 6
    assert all(100 <= token < 120 for body in model.bodies for token in body["prompt"])
    assert model.bodies[-1] | {"prompt": None} == {
        "prompt": None, "model": "tiny", "max_tokens": 4, "temperature": 0.0, "stream": True,
        "stream_options": {"include_usage": True}, "ignore_eos": True,
    }  # fmt: skip


def test_the_same_seed_sends_the_same(model: Model) -> None:
    argv = ["--base-url", model.url, *SMALL]
    for seed in ("1", "1", "2"):
        cli.main([*argv, "--random-range-ratio", "0.5", "--seed", seed])
    first, second, third = (sorted(str(b) for b in model.bodies[i : i + 6]) for i in (0, 6, 12))
    assert first == second != third


def test_chat_gets_words(model: Model) -> None:
    argv = ["--base-url", model.url, "--num-prompts", "1", "--random-input-len", "8", "--random-output-len", "4"]
    assert cli.main([*argv, "--endpoint", "/v1/chat/completions"]) == 0
    (message,) = model.bodies[-1]["messages"]
    assert (message["role"], len(message["content"].split())) == ("user", 8)
    assert model.bodies[-1]["max_completion_tokens"] == 4


def test_workers_send_the_same_requests_together(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = [tmp_path / "one.json", tmp_path / "two.json"]
    for number, path in enumerate(saved, 1):
        argv = ["--base-url", model.url, *SMALL, "--random-range-ratio", "0.5", "--workers", str(number)]
        assert cli.main([*argv, "--save-result", str(path)]) == 0
    one, two = (json.loads(path.read_text()) for path in saved)
    assert one["input_lens"] == two["input_lens"]
    assert one["output_lens"] == two["output_lens"]
    assert len(model.bodies) == (1 + 5) + (2 + 5), "each worker warms up"
    model.key = "secret"
    assert cli.main(["--base-url", model.url, *SMALL, "--workers", "2"]) == 2
    assert "--api-key KEY" in capsys.readouterr().err


async def test_each_event_has_its_own_time_and_those_that_came_together_are_counted() -> None:
    events = [*(f"data: {json.dumps(text_chunk('a'))}\n\n" for _ in range(4)), "data: [DONE]\n\n"]

    async def reads() -> AsyncIterator[bytes]:
        yield events[0].encode()
        yield "".join(events[1:]).encode()

    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=reads()))
    times = iter(range(100))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        target = Target("/v1/completions", "tiny")
        outcome = await measure(http, target, LoadRequest([1], 1, 4), clock=lambda: float(next(times)))
    assert (outcome.itls, outcome.num_joined) == ([1.0, 1.0, 1.0], 2)


def test_a_busy_load_generator_says_so(
    model: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "BUSY_SHARE", 0.0)
    assert cli.main(["--base-url", model.url, *SMALL]) == 0
    assert "gaps may be the load generator's own; try --workers 2" in capsys.readouterr().err


def test_a_trace_sets_lengths_and_times(model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(0, 80, 16, [1]), (5, 160, 8, [1, 2]), (6, 9999, 8, [1])]
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    assert cli.main(["--base-url", model.url, "--trace", str(trace), "--scale", "0.125", "--stretch", "2"]) == 0
    asked = sorted((len(body["prompt"]), body["max_tokens"]) for body in model.bodies[1:])
    assert asked == [(10, 2), (20, 1)]
    ten, twenty = sorted((body["prompt"] for body in model.bodies[1:]), key=len)
    assert twenty[:10] == ten
    assert model.bodies[0]["prompt"] != ten
    assert "left out 1 of 3" in capsys.readouterr().out


def test_failures_are_counted_and_reported(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    model.refused = 2
    argv = ["--base-url", model.url, "--num-prompts", "4", "--random-input-len", "8", "--random-output-len", "4"]
    assert cli.main(argv) == 1
    out, err = capsys.readouterr()
    assert "2 of 4 requests failed, the first one with: 429: no room" in err
    assert " ".join(out.split()).find("Successful requests: 2 Failed requests: 2") > 0


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--random-input-len", "60", "--random-output-len", "5"], "takes 65 tokens, the server's max_model_len is 64"),
        (["--trace", "/none.csv"], "/none.csv"),
        (["--endpoint", "/v1/completions", "--random-input-len", "8", "--random-output-len", "4"], None),
    ],
)
def test_a_run_that_cannot_begin_says_why(
    model: Model, capsys: pytest.CaptureFixture[str], argv: list[str], complaint: str | None
) -> None:
    if complaint is None:
        model.card, complaint = {}, "name one with --model"
    assert cli.main(["--base-url", model.url, *argv]) == 2
    assert complaint in capsys.readouterr().err


def test_a_server_that_lists_no_models_needs_a_name(model: Model) -> None:
    model.card = {}
    argv = "--model mine --num-prompts 1 --random-input-len 8 --random-output-len 4"
    assert cli.main(["--base-url", model.url, *argv.split()]) == 0
    assert model.bodies[-1]["model"] == "mine"
    assert max(model.bodies[-1]["prompt"]) < 1000


def test_the_flags_of_vllms_bench(model: Model, tmp_path: Path) -> None:
    port = model.url.rpartition(":")[2]
    argv = ["--backend", "openai-chat", "--host", "127.0.0.1", "--port", port, "--dataset-name", "random", *SMALL]
    saved = ["--result-dir", str(tmp_path), "--result-filename", "r.json", "--save-result", "--disable-tqdm"]
    assert cli.main([*argv, "--request-rate", "inf", *saved]) == 0
    assert model.bodies[0]["messages"]
    assert json.loads((tmp_path / "r.json").read_text())["request_rate"] == "inf"


def test_a_server_with_keys_is_told_of(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    model.key = "secret"
    for given in ([], ["--model", "tiny"], ["--api-key", "another"]):
        assert cli.main(["--base-url", model.url, *SMALL, *given]) == 2
        assert "--api-key KEY" in capsys.readouterr().err
    assert cli.main(["--base-url", model.url, *SMALL, "--api-key", "secret"]) == 0


def test_a_refused_warm_up_ends_the_run(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--base-url", model.url + "/nowhere", "--model", "tiny"]) == 2
    assert "the warm-up request" in capsys.readouterr().err


def test_no_server_names_the_way_out(closed_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--base-url", f"http://127.0.0.1:{closed_port}", "--model", "tiny"]) == 2
    assert "is the server running? splitfuse serve" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["--num-prompts", "0"], ["--num-prompts", "many"], ["--request-rate", "nan"], ["--request-rate", "-1"],
        ["--random-range-ratio", "1.5"], ["--vocab-size", "100"], ["--goodput", "itl:5"], ["--goodput", "ttft"],
        ["--metric-percentiles", "101"], ["--percentile-metrics", "ttft,speed"], ["--endpoint", "/generate"],
        ["--dataset-name", "sharegpt"],
    ],
)  # fmt: skip
def test_wrong_options_end_with_status_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert f"argument {argv[0]}" in err
    assert len(err.splitlines()) == 1
