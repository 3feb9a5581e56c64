"""Cost of the server without a model: real HTTP, scheduler and text, but every token is made up at once.

`python tests/bench/null_model.py`: the server runs on one core; this process, its client, on another. First as many
streamed tokens/s as possible; then many open streams at a fixed pace, and the delay of each token after its step.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from splitfuse.client.bench.latency import percentile
from splitfuse.engine.config import DEMO_FOLDER, ResolvedConfig
from splitfuse.engine.core.batch import NO_OUTPUT, Batch, Moves, RowOutput
from splitfuse.engine.core.block_manager import CacheSpec
from splitfuse.engine.execution.models.registry import read_model_config

ENDPOINTS = ("/v1/completions", "/generate")
PROMPT_LEN = 16
TOGGLE_S = 2.0
OPENING_S = 5.0  # duration of the opening of paced streams
FIRST_WORD = (
    256  # token ids from here on are single words, a step's number in letters: the client learns which step sent it
)
NUM_WORDS = 26**3
_TEXT = b'"text":" '


class NullRunner:
    """Runner that samples the step's number for every row; with a pace, steps end on a grid of that many seconds."""

    def __init__(self, *, pace_s: float, num_blocks: int, max_model_len: int) -> None:
        self.loaded = SimpleNamespace(
            memory=None,
            model_config=read_model_config(DEMO_FOLDER),
            device=SimpleNamespace(type="none"),
            inexact=None,
            dtype="none",
            max_model_len=max_model_len,
            cache=CacheSpec(num_blocks, 16),
            states=None,
            op_by_op=None,
        )
        self.ranks = None
        self.step_times: list[float] = []  # end of each step
        self._pace_s = pace_s

    def move(self, moves: Moves) -> None:
        raise AssertionError("the null model has no cache")

    def run(self, batch: Batch) -> list[RowOutput]:
        if self._pace_s:
            time.sleep(self._pace_s - time.monotonic() % self._pace_s)
        token = RowOutput((FIRST_WORD + len(self.step_times) % NUM_WORDS,))
        self.step_times.append(time.monotonic())
        return [token if row.needs_sampling else NO_OUTPUT for row in batch.rows]


def word(number: int) -> str:
    """Return three letters for a number below NUM_WORDS."""
    return "".join(chr(ord("a") + number // 26**digit % 26) for digit in range(3))


def number_of(letters: bytes) -> int:
    """Return the number that a word spells."""
    return sum((letter - ord("a")) * 26**digit for digit, letter in enumerate(letters))


def serve(args: argparse.Namespace) -> None:
    """Run the server process: `splitfuse serve` that loads a NullRunner."""
    os.sched_setaffinity(0, {0})
    from splitfuse.engine.serving import builder
    from splitfuse.engine.serving.input_processor import InputProcessor
    from splitfuse.server.process.queued_output import queued_output
    from splitfuse.server.process.start import serve as serve_with
    from splitfuse.server.process.stop_signals import StopSignals
    from splitfuse.server.settings import Settings

    runner = NullRunner(pace_s=args.pace_ms / 1000, num_blocks=64 * args.streams, max_model_len=1024)
    tokenizer: Any = _tokenizer()

    def load(config: Any, **_: Any) -> builder.EngineParts:
        input_processor = InputProcessor(
            tokenizer=tokenizer,
            grammars=None,
            model_config=runner.loaded.model_config,
            max_model_len=1024,
            max_cache_tokens=10**9,
            seed=0,
        )
        facts = ResolvedConfig.of(config, device="cpu")
        return builder.EngineParts(facts, tokenizer, runner, input_processor)  # type: ignore[arg-type]

    builder.load = load
    settings = Settings(
        port=args.port,
        max_num_seqs=args.streams,
        max_num_batched_tokens=4096,
        stream_interval=args.stream_interval,
        request_log=not args.no_request_log,
        seed=0,
    )
    with queued_output(), StopSignals() as signals:
        if args.profile:
            _profiled(lambda: serve_with(settings, signals), args.profile)
        else:
            serve_with(settings, signals)
    Path(args.step_times).write_text(json.dumps(runner.step_times))


def _profiled(run: Any, path: str) -> None:
    import cProfile

    profile = cProfile.Profile()
    profile.runcall(run)
    profile.dump_stats(path)


def _tokenizer() -> Any:
    """Return the engine's own tokenizer class over a vocabulary of bytes and numbers."""
    import tokenizers

    from splitfuse.engine.language.text.tokenizer import Tokenizer

    words = [*sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()), *("Ġ" + word(i) for i in range(NUM_WORDS))]
    fast = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={text: i for i, text in enumerate(words)}, merges=[]))
    fast.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = tokenizers.decoders.ByteLevel()
    with tempfile.TemporaryDirectory() as folder:
        fast.save(str(Path(folder, "tokenizer.json")))
        return Tokenizer(Path(folder))


class Stream(asyncio.Protocol):
    """Streamed request over a raw socket: counts events, and records the arrival of each word."""

    def __init__(self, head: bytes, *, notes: bool) -> None:
        self.num_events = 0
        self.arrivals: list[tuple[int, float]] = []  # (step, when)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._head = head
        self._notes = notes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._head)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        before = self.num_events
        end = data.find(b"event: done") % (len(data) + 1)  # the native last event repeats the whole text
        self.num_events += data.count(_TEXT, 0, end)
        if self._notes and self.num_events > before:
            self.arrivals += [(step, now) for step in _steps(data[:end])]
        if data.endswith(b"0\r\n\r\n") and not self.ended.done():
            self._transport.close()
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(exc or ConnectionError("the server closed the stream before its end"))


class Viewer(asyncio.Protocol):
    """Viewer that reads the stream of steps, and does nothing with it."""

    def __init__(self, head: bytes) -> None:
        self._head = head

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._head)


def _steps(data: bytes) -> Iterator[int]:
    position = data.find(_TEXT)
    while position >= 0:
        position += len(_TEXT)
        yield number_of(data[position : position + 3])
        position = data.find(_TEXT, position)


def request_bytes(endpoint: str, *, prompt: list[int], num_tokens: int, port: int) -> bytes:
    """Return the bytes of an HTTP request."""
    fields = {"prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    body = json.dumps(fields).encode()
    head = f"POST {endpoint} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def _open(args: argparse.Namespace, endpoint: str, number: int, *, notes: bool) -> Stream:
    prompt = [number % 250, number // 250, *range(PROMPT_LEN - 2)]
    stream = Stream(request_bytes(endpoint, prompt=prompt, num_tokens=args.tokens, port=args.port), notes=notes)
    await asyncio.get_running_loop().create_connection(lambda: stream, "127.0.0.1", args.port)
    return stream


async def _view(port: int) -> asyncio.BaseTransport:
    viewer = Viewer(f"GET /stats/stream HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: viewer, "127.0.0.1", port)
    return transport


async def load(args: argparse.Namespace, endpoint: str, *, pause_s: float = 0) -> tuple[list[Stream], float, float]:
    """Open streams at an interval, and read them to the end. Returns when all were open, and when all had ended."""
    for _ in range(args.viewers):
        await _view(args.port)
    streams = []
    for number in range(args.streams):
        streams.append(await _open(args, endpoint, number, notes=bool(pause_s)))
        await asyncio.sleep(pause_s)
    opened = time.monotonic()
    await asyncio.gather(*(stream.ended for stream in streams))
    return streams, opened, time.monotonic()


class ServerProcess:
    """Process of this file with --serve, which the constructor awaits."""

    def __init__(self, args: argparse.Namespace, step_times: Path) -> None:
        names = ("port", "streams", "stream_interval", "pace_ms", "profile")
        given = [f"--{name.replace('_', '-')}={getattr(args, name)}" for name in names]
        given += ["--no-request-log"] * args.no_request_log
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", f"--step-times={step_times}", *given],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        while "curl" not in (line := self._process.stdout.readline()):
            if not line:
                raise RuntimeError(f"the null server ended with status {self._process.wait()}")

    def cpu_seconds(self) -> float:
        """Return the processor time of all threads so far."""
        tasks = Path(f"/proc/{self._process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def stop(self) -> None:
        """End the server in order, so that it writes its step times."""
        self._process.terminate()
        self._process.communicate()


def throughput(args: argparse.Namespace, endpoint: str) -> None:
    """Print streamed tokens/s, and the server's processor time per token."""
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(args, Path(folder, "steps.json"))
        try:
            asyncio.run(load(args, endpoint))  # warm-up
            before, start = server.cpu_seconds(), time.monotonic()
            streams, _, end = asyncio.run(load(args, endpoint))
            spent = server.cpu_seconds() - before
        finally:
            server.stop()
    total = args.streams * args.tokens
    num_events = sum(stream.num_events for stream in streams)
    assert num_events == args.streams * (1 - (1 - args.tokens) // args.stream_interval), f"{num_events} events came"
    print(
        f"{endpoint:>16} {args.streams:>5} streams of {args.tokens}: {total / (end - start):8,.0f} tokens/s, "
        f"{spent / total * 1e6:.1f} us of the server's core per token",
        flush=True,
    )


def delays(args: argparse.Namespace, endpoint: str) -> None:
    """Print the delays of paced streams' tokens after their steps, from a second after the last stream opened."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "steps.json")
        server = ServerProcess(args, path)
        try:
            streams, opened, _ = asyncio.run(load(args, endpoint, pause_s=OPENING_S / args.streams))
        finally:
            server.stop()
        step_times = json.loads(path.read_text())
    arrivals = [arrival for stream in streams for arrival in stream.arrivals if arrival[1] > opened + 1.0]
    late = sorted(when - step_times[step] for step, when in arrivals)
    figures = ", ".join(f"P{percent} {1e3 * (percentile(late, percent) or 0):.1f} ms" for percent in (50, 90, 99))
    print(
        f"{endpoint:>16} {args.streams:>5} streams at {1000 / args.pace_ms:g} tokens/s: added delay {figures}",
        flush=True,
    )


def viewer_cost(args: argparse.Namespace, endpoint: str) -> None:
    """Print a viewer's cost in the server's time per token: the viewer comes and goes between windows of two seconds.

    A window with it is compared with the mean of the windows before and after, because the machine's speed drifts.
    """
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(args, Path(folder, "steps.json"))
        try:
            ratios = asyncio.run(_toggle(args, endpoint, server))
        finally:
            server.stop()
    error = statistics.stdev(ratios) / len(ratios) ** 0.5
    print(
        f"{endpoint:>16} {args.streams:>5} streams, time per token with a viewer / without: median "
        f"{statistics.median(ratios):.3f}, mean {statistics.mean(ratios):.3f} +- {error:.3f}, {len(ratios)} windows"
    )


async def _toggle(args: argparse.Namespace, endpoint: str, server: ServerProcess) -> list[float]:
    streams: list[Stream] = []

    async def keep_open(number: int) -> None:
        while True:
            streams.append(stream := await _open(args, endpoint, number, notes=False))
            await stream.ended

    async def window() -> float:
        await asyncio.sleep(TOGGLE_S / 4)  # leaves out the cost of coming and going
        spent, num_tokens = server.cpu_seconds(), sum(stream.num_events for stream in streams)
        await asyncio.sleep(TOGGLE_S)
        return (server.cpu_seconds() - spent) / (sum(stream.num_events for stream in streams) - num_tokens)

    tasks = [asyncio.create_task(keep_open(number)) for number in range(args.streams)]
    await asyncio.sleep(TOGGLE_S)
    ratios = []
    before = await window()
    for _ in range(args.toggles):
        viewer = await _view(args.port)
        with_viewer = await window()
        viewer.close()
        after = await window()
        ratios.append(2 * with_viewer / (before + after))
        before = after
    for task in tasks:
        task.cancel()
    return ratios


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--streams", type=int, default=256)
    add("--tokens", type=int, default=512, help="of each stream")
    add("--viewers", type=int, default=0, help="readers of the stream of steps beside them")
    add("--toggles", type=int, default=0, help="a reader that comes and goes so often: what it costs")
    add("--pace-ms", type=float, default=0, help="time between steps; the added delay is reported")
    add("--stream-interval", type=int, default=1, help="tokens per event after the first")
    add("--endpoint", choices=ENDPOINTS, nargs="+", default=ENDPOINTS)
    add("--port", type=int, default=8765)
    add("--no-request-log", action="store_true")
    add("--profile", default="", help="cProfile of the server's loop into this file")
    add("--serve", action="store_true", help=argparse.SUPPRESS)
    add("--step-times", default=os.devnull, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = parse()
    if args.serve:
        serve(args)
        return
    os.sched_setaffinity(0, {1})
    for endpoint in args.endpoint:
        (delays if args.pace_ms else viewer_cost if args.toggles else throughput)(args, endpoint)


if __name__ == "__main__":
    main()
