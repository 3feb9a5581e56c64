"""`splitfuse bench serve`: puts an OpenAI-compatible server under load and prints the latencies that its users saw.

Open loop (--request-rate, --trace), closed loop (--max-concurrency), or both.
"""

import asyncio
import contextlib
import dataclasses
import io
import json
import math
import random
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from ..base import BaseClient
from . import report
from .instrument import BUSY_SHARE, WorkerError, median_gap_ms, run_workers, server_gaps
from .latency import KINDS, Outcome, summarize
from .openai_stream import Target, measure
from .options import FALLBACK_VOCAB_SIZE, LoadOptions, OptionsParser, Parser, parse_options
from .traces import TraceError, TraceRow, read_trace
from .workload import LoadRequest, PromptMaker, arrivals, random_rows

READ_TIMEOUT_S = 600.0  # seconds without a byte before a request counts as failed


@dataclass(frozen=True)
class Run:
    """Outcomes of a run that has ended."""

    model: str
    outcomes: Sequence[Outcome]
    duration: float
    busy: float  # share of a core that this process, or the busiest worker, spent
    server_gap_ms: float | None = None  # median gap between tokens by the server's own count


class LoadError(Exception):
    """Error of a run that cannot begin; the message names the way out."""


@dataclass(frozen=True)
class ServedModel:
    """Model as GET /v1/models lists it; None if the server states no limit."""

    name: str
    max_model_len: int | None = None
    vocab_size: int | None = None


def main(argv: Sequence[str] | None = None, *, parser_class: Parser = OptionsParser) -> int:
    """Run the command. Returns its exit status: 1 if a request failed, 2 if the run could not begin."""
    options = parse_options(argv, parser_class=parser_class)
    try:
        run = asyncio.run(_observed(options, sys.argv[1:] if argv is None else argv))
    except (LoadError, TraceError, WorkerError) as error:
        print(f"splitfuse: error: {error}", file=sys.stderr)
        return 2
    _report(options, run)
    if run.busy > BUSY_SHARE:
        wish = f"--workers {options.workers + 1}"
        text = f"note: sending took {run.busy:.0%} of a core, so gaps may be the load generator's own; try {wish}"
        print(text, file=sys.stderr)
    errors = [outcome.error for outcome in run.outcomes if outcome.error]
    if errors:
        print(f"{len(errors)} of {len(run.outcomes)} requests failed, the first one with: {errors[0]}", file=sys.stderr)
    return 1 if errors else 0


def work(argv: Sequence[str]) -> None:
    """Send a worker's share of the requests once a line comes; print outcomes as JSON. Speaks with `run_workers`."""
    with contextlib.redirect_stdout(io.StringIO()):
        options = parse_options(argv)
        try:
            run = asyncio.run(_run(options, start=_ready))
        except (LoadError, TraceError) as error:
            sys.exit(str(error))
    print(json.dumps([run.duration, run.busy, [dataclasses.asdict(outcome) for outcome in run.outcomes]]))


def _ready() -> None:
    print("ready", file=sys.__stdout__, flush=True)
    sys.stdin.readline()


async def drive(
    requests: Sequence[LoadRequest],
    send: Callable[[LoadRequest], Awaitable[Outcome]],
    *,
    max_concurrency: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> tuple[list[Outcome], float]:
    """Send requests on arrival, at most `max_concurrency` at once. Returns outcomes in order, and the run's seconds."""
    slots = asyncio.Semaphore(max_concurrency or max(1, len(requests)))

    async def send_when_free(request: LoadRequest) -> Outcome:
        async with slots:
            return await send(request)

    began = clock()
    tasks = []
    async with asyncio.TaskGroup() as group:
        for request in requests:
            early = began + request.arrival - clock()
            if early > 0:
                await sleep(early)
            tasks.append(group.create_task(send_when_free(request)))
    return [task.result() for task in tasks], clock() - began


def _http(options: LoadOptions) -> httpx.AsyncClient:
    server = BaseClient(options.base_url, options.api_key, None, 0)
    return httpx.AsyncClient(**server.http_options() | {"timeout": httpx.Timeout(READ_TIMEOUT_S, pool=None)})


async def _observed(options: LoadOptions, argv: Sequence[str]) -> Run:
    """Return a run with the server's own figure."""
    async with _http(options) as http:
        before = await server_gaps(http)
        run = await (_run(options) if options.workers == 1 else _run_workers(http, options, argv))
        return dataclasses.replace(run, server_gap_ms=median_gap_ms(before, await server_gaps(http)))


async def _run_workers(http: httpx.AsyncClient, options: LoadOptions, argv: Sequence[str]) -> Run:
    served = await _served_model(http, options.model)
    outcomes, duration, busy = await asyncio.to_thread(run_workers, argv, options.workers)
    return Run(served.name, outcomes, duration, busy)


async def _run(options: LoadOptions, *, start: Callable[[], None] = lambda: None) -> Run:
    """Send this process's share of the requests; `start` returns when they may go."""
    async with _http(options) as http:
        served = await _served_model(http, options.model)
        url = str(http.base_url).rstrip("/")
        target = Target(options.endpoint, served.name, options.temperature, options.ignore_eos)
        requests, warm_up = _requests(options, served)
        first = await measure(http, target, warm_up)
        if first.error:
            raise LoadError(f"the warm-up request to {url}{options.endpoint} failed: {first.error}")
        print(f"{len(requests)} requests to {url}{options.endpoint}, model {served.name}", flush=True)
        progress = _Progress(len(requests))

        async def send(request: LoadRequest) -> Outcome:
            outcome = await measure(http, target, request)
            progress.advance()
            return outcome

        number, num_workers = options.share
        at_once = options.max_concurrency and -(-options.max_concurrency // num_workers)
        start()
        spent = time.process_time()
        outcomes, duration = await drive(requests[number::num_workers], send, max_concurrency=at_once)
    return Run(served.name, outcomes, duration, (time.process_time() - spent) / duration)


async def _served_model(http: httpx.AsyncClient, wanted: str | None) -> ServedModel:
    try:
        response = await http.get("/v1/models")
        response.raise_for_status()
        cards = {card["id"]: card for card in response.json()["data"]}
    except httpx.TransportError as exc:
        raise LoadError(f"no answer from {http.base_url} ({exc}); is the server running? splitfuse serve") from exc
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as exc:
        if isinstance(exc, httpx.HTTPStatusError) and exc.response.status_code == 401:
            text = "wants a key, or another one: --api-key KEY, or SPLITFUSE_API_KEY in the environment"
            raise LoadError(f"{http.base_url} {text}") from exc
        if wanted is None:
            raise LoadError(f"{http.base_url} does not list its models ({exc}); name one with --model") from exc
        return ServedModel(wanted)
    if wanted is None and len(cards) != 1:
        raise LoadError(f"the server has {len(cards)} models ({', '.join(cards)}); name one with --model")
    name = next(iter(cards)) if wanted is None else wanted
    card = cards.get(name, {})
    return ServedModel(name, card.get("max_model_len"), card.get("vocab_size"))


def _requests(options: LoadOptions, served: ServedModel) -> tuple[list[LoadRequest], LoadRequest]:
    """Return the requests of the run, and a warm-up of the first one's size that shares no tokens with it."""
    source = random.Random(options.seed)
    rows = _fitting(_rows(options, source), served.max_model_len)
    vocab_size = options.vocab_size or served.vocab_size or FALLBACK_VOCAB_SIZE
    maker = PromptMaker(vocab_size, as_text=options.as_text, seed=options.seed)
    requests = [
        LoadRequest(maker.prompt(row, source), row.prompt_len, row.output_len, at)
        for row, at in zip(rows, _times(rows, options, source), strict=True)
    ]
    row = dataclasses.replace(rows[0], hash_ids=())
    warm_up = maker.prompt(row, random.Random(f"warm-up {options.seed}"))
    return requests, LoadRequest(warm_up, row.prompt_len, row.output_len)


def _rows(options: LoadOptions, source: random.Random) -> list[TraceRow]:
    if options.trace is not None:
        return read_trace(options.trace, scale=options.scale, stretch=options.stretch, limit=options.num_prompts)
    return random_rows(
        options.num_prompts or 100,
        input_len=options.random_input_len,
        output_len=options.random_output_len,
        range_ratio=options.random_range_ratio,
        source=source,
    )


def _fitting(rows: list[TraceRow], max_model_len: int | None) -> list[TraceRow]:
    if max_model_len is None:
        return rows
    fitting = [row for row in rows if row.prompt_len + row.output_len <= max_model_len]
    if not fitting:
        shortest = min(row.prompt_len + row.output_len for row in rows)
        raise LoadError(
            f"the shortest request takes {shortest} tokens, the server's max_model_len is {max_model_len}; "
            "try a smaller --random-input-len and --random-output-len, or --scale with a trace"
        )
    if len(fitting) < len(rows):
        print(f"left out {len(rows) - len(fitting)} of {len(rows)} requests, longer than {max_model_len} tokens")
    return fitting


def _times(rows: list[TraceRow], options: LoadOptions, source: random.Random) -> list[float]:
    recorded = [row.arrival for row in rows if row.arrival is not None]
    if options.request_rate is None and len(recorded) == len(rows):
        return recorded
    rate = math.inf if options.request_rate is None else options.request_rate
    return arrivals(len(rows), rate=rate, burstiness=options.burstiness, source=source)


def _report(options: LoadOptions, run: Run) -> None:
    summary = summarize(run.outcomes, run.duration, percentiles=options.metric_percentiles, goodput=options.goodput)
    kinds = [kind for kind in KINDS if kind in options.percentile_metrics]
    rate = math.inf if options.request_rate is None else options.request_rate
    print(
        report.table(
            summary,
            request_rate=rate,
            max_concurrency=options.max_concurrency,
            kinds=kinds,
            server_gap_ms=run.server_gap_ms,
        )
    )
    if options.save_result is not None:
        saved = report.flat(summary, run.outcomes, _setup(options, run))
        options.save_result.write_text(json.dumps(saved) + "\n", encoding="utf-8")


def _setup(options: LoadOptions, run: Run) -> dict[str, Any]:
    """Return the options of the run, without the key."""
    setup: dict[str, Any] = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "backend": "openai"}
    setup |= {name: value for name, value in vars(options).items() if name not in ("api_key", "save_result", "model")}
    setup |= {"model_id": run.model, "num_prompts": len(run.outcomes)}
    if options.request_rate is None:
        setup["request_rate"] = "inf" if options.trace is None else "trace"
    return {
        name: str(value) if isinstance(value, Path) or value == math.inf else value for name, value in setup.items()
    }


class _Progress:
    """Counter of ended requests on the terminal; prints nothing into files and pipes."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._num_ended = 0

    def advance(self) -> None:
        """Count one more request."""
        self._num_ended += 1
        if sys.stderr.isatty():
            end = "\n" if self._num_ended == self._total else ""
            print(f"\r{self._num_ended}/{self._total}", end=end, file=sys.stderr, flush=True)
