"""Cost of the server beside a device that costs nothing: real HTTP, scheduler and text, while every step takes D ms.

`python tests/bench/null_device.py --streams 256 --step-ms 8`: a step ends D ms after the step before, two are in
flight, and each row gets a made-up token. In one process the server has a core and the client another one; with
fronts all processes share both.

All is counted from the first request to the end of the last stream, prompts included, so nothing that was computed
before can count. `--api-server-count 1` gives the engine a process of its own.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from splitfuse.engine.config import DEMO_FOLDER, ResolvedConfig
from splitfuse.engine.core.batch import NO_OUTPUT, Batch, Moves, RowOutput
from splitfuse.engine.core.block_manager import CacheSpec
from splitfuse.engine.execution.models.registry import read_model_config

PROMPT_LEN = 16
MAX_MODEL_LEN = 4096
LAUNCH_S = 0.0003  # time in which the host launches a step, with the GIL
FIRST_WORD, NUM_WORDS = 256, 26
MARK = b"~"  # begins every word, and occurs nowhere else in an answer
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


class NullDevice:
    """Runner and launcher over a clock: a step ends `step_s` after the end of the step before."""

    def __init__(self, *, step_s: float, num_blocks: int) -> None:
        self.loaded = SimpleNamespace(
            memory=None, model_config=read_model_config(DEMO_FOLDER), device=SimpleNamespace(type="none"), inexact=None,
            dtype="none", max_model_len=MAX_MODEL_LEN, cache=CacheSpec(num_blocks, 16), states=None, op_by_op=None,
        )  # fmt: skip
        self.ranks = None
        self.has_idle_work = False
        self._step_s = step_s
        self._last_end = 0.0
        self._num_steps = 0

    def move(self, moves: Moves) -> None:
        raise AssertionError("the null device has no cache")

    def launch(self, batch: Batch) -> "PendingStep":
        start = time.monotonic()
        while time.monotonic() < start + LAUNCH_S:
            pass
        self._last_end = max(start, self._last_end) + self._step_s
        self._num_steps += 1
        return PendingStep(batch, self._last_end, FIRST_WORD + self._num_steps % NUM_WORDS)

    def run(self, batch: Batch) -> list[RowOutput]:
        return self.launch(batch).wait()

    def stats(self) -> dict[str, int]:
        return {}

    def count_late_work(self) -> None:
        """Do nothing, like a launcher that has compiled all."""


class PendingStep:
    """Step on the null device."""

    def __init__(self, batch: Batch, end: float, token_id: int) -> None:
        self._batch, self._end, self._token_id = batch, end, token_id

    def wait(self) -> list[RowOutput]:
        time.sleep(max(0.0, self._end - time.monotonic()))
        token = RowOutput((self._token_id,))
        return [token if row.needs_sampling else NO_OUTPUT for row in self._batch.rows]


def install(args: argparse.Namespace) -> None:
    """Let this process's engine load a null device."""
    from dataclasses import replace

    from splitfuse.engine.execution.runner import launching
    from splitfuse.engine.language.text.tokenizer import Tokenizer
    from splitfuse.engine.serving import builder
    from splitfuse.engine.serving.input_processor import InputProcessor

    device = NullDevice(step_s=args.step_ms / 1000, num_blocks=args.streams * MAX_MODEL_LEN // 64)

    def load(config: Any, **_: Any) -> builder.EngineParts:
        tokenizer = Tokenizer(Path(config.tokenizer), chat_template=TEMPLATE)
        input_processor = InputProcessor(
            tokenizer=tokenizer,
            grammars=None,
            model_config=device.loaded.model_config,
            max_model_len=MAX_MODEL_LEN,
            max_cache_tokens=10**9,
            seed=0,
        )
        facts = replace(ResolvedConfig.of(config, device="cpu"), async_scheduling=True)
        return builder.EngineParts(facts, tokenizer, device, input_processor, path=DEMO_FOLDER)  # type: ignore[arg-type]

    builder.load = load
    launching.load_launcher = lambda runner, config: runner  # type: ignore[assignment, return-value]


def save_tokenizer(folder: Path) -> None:
    """Write a tokenizer over a vocabulary of bytes and a few words."""
    import tokenizers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *(f"~{chr(ord('a') + number)}" for number in range(NUM_WORDS))]
    fast = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={text: i for i, text in enumerate(words)}, merges=[]))
    fast.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = tokenizers.decoders.ByteLevel()
    fast.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))


def serve(args: argparse.Namespace) -> None:
    """Run the server: `splitfuse serve` over the null device."""
    if not args.api_server_count:
        os.sched_setaffinity(0, {0})
    from splitfuse.server.process.queued_output import queued_output
    from splitfuse.server.process.start import serve as serve_with
    from splitfuse.server.process.stop_signals import StopSignals
    from splitfuse.server.settings import Settings

    if args.api_server_count:
        from splitfuse.server.extras.fronts import engine_process

        options = [f"--streams={args.streams}", f"--step-ms={args.step_ms}"]
        engine_process.PROGRAM[:] = [__file__, *options, "--engine"]
    else:
        install(args)
    limits: Any = {"max_num_seqs": args.streams, "max_num_batched_tokens": max(4096, args.streams)}
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(Path(folder))
        own: Any = {"tokenizer": folder, "api_server_count": args.api_server_count, "request_log": False}
        settings = Settings(port=0, seed=0, **limits, **own)
        with queued_output(), StopSignals() as signals:
            serve_with(settings, signals)


class ServerProcess:
    """Server process, which the constructor awaits."""

    def __init__(self, args: argparse.Namespace) -> None:
        options = [f"--{name.replace('_', '-')}={getattr(args, name)}" for name in ("streams", "step_ms")]
        command = [sys.executable, __file__, "--serve", *options, f"--api-server-count={args.api_server_count}"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        while "curl" not in (line := self._process.stdout.readline()):
            if not line:
                raise RuntimeError(f"the null server ended with status {self._process.wait()}")
        self.port = int(line.partition("127.0.0.1:")[2].partition("/")[0])
        self._pids = {"server": self._process.pid}
        if args.api_server_count:
            children = [path.read_text() for path in Path(f"/proc/{self._process.pid}/task").glob("*/children")]
            engines = [pid for pid in " ".join(children).split() if b"--engine" in _command(pid)]
            self._pids = {"front": self._process.pid, "engine": int(engines[0])}

    def cpu_seconds(self) -> dict[str, float]:
        """Return the processor time so far of each process, this one included."""
        return {name: _cpu_seconds(pid) for name, pid in (self._pids | {"client": os.getpid()}).items()}

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate()


def _command(pid: str) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _cpu_seconds(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


class Stream(asyncio.Protocol):
    """Streamed request over a raw socket, which counts tokens."""

    def __init__(self, request: bytes) -> None:
        self.num_tokens = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        end = data.find(b"event: done") % (len(data) + 1)  # the native last event repeats the whole text
        self.num_tokens += data.count(MARK, 0, end)
        if data.endswith(b"0\r\n\r\n") and not self.ended.done():
            self._transport.close()
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(exc or ConnectionError("the server closed the stream before its end"))


def request_bytes(endpoint: str, *, number: int, num_tokens: int) -> bytes:
    """Return the bytes of the HTTP request with this number."""
    fields: dict[str, Any] = {"max_tokens": num_tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    if "chat" in endpoint:
        fields["messages"] = [{"role": "user", "content": f"{number:0{PROMPT_LEN}}"}]
    else:
        fields["prompt"] = [number % 250, number // 250, *range(PROMPT_LEN - 2)]
    body = json.dumps(fields).encode()
    head = f"POST {endpoint} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def load(args: argparse.Namespace, server: ServerProcess) -> dict[str, Any]:
    """Measure from the first request to the end of the last stream."""
    loop, streams = asyncio.get_running_loop(), list[Stream]()
    spent, start = server.cpu_seconds(), time.monotonic()
    for number in range(args.streams):
        stream = Stream(request_bytes(args.endpoint, number=number, num_tokens=args.tokens))
        await loop.create_connection(lambda stream=stream: stream, "127.0.0.1", server.port)
        streams.append(stream)
    await asyncio.gather(*(stream.ended for stream in streams))
    now, seconds = server.cpu_seconds(), time.monotonic() - start
    num_tokens = sum(stream.num_tokens for stream in streams)
    assert num_tokens == args.streams * args.tokens, f"{num_tokens} tokens came"
    return {
        "tokens_per_s": num_tokens / seconds,
        "ms_per_step": 1e3 * seconds * args.streams / num_tokens,
        "us_per_token": {name: 1e6 * (now[name] - spent[name]) / num_tokens for name in now},
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Serve, warm up with a load, and return the figures of a second one."""
    server = ServerProcess(args)
    try:
        asyncio.run(load(args, server))
        return asyncio.run(load(args, server))
    finally:
        server.stop()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--streams", type=int, default=256)
    add("--step-ms", type=float, default=1.0, help="time of a step on the device")
    add("--tokens", type=int, default=512, help="of each stream")
    add("--api-server-count", type=int, default=0, help="0: one process; 1: the engine's process and one front")
    add("--endpoint", default="/v1/completions", help="/v1/completions, /v1/chat/completions or /generate")
    add("--json", action="store_true", help="print one line of JSON")
    add("--serve", action="store_true", help=argparse.SUPPRESS)
    add("--engine", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = parse()
    if args.engine:
        from splitfuse.server.extras.fronts import engine_process

        install(args)
        sys.exit(engine_process.main(*args.engine))
    if args.serve:
        serve(args)
        return
    if not args.api_server_count:
        os.sched_setaffinity(0, {1})
    figures = measure(args)
    if args.json:
        print(json.dumps(figures), flush=True)
        return
    times = ", ".join(f"{name} {us:.1f}" for name, us in figures["us_per_token"].items())
    print(
        f"{args.endpoint} {args.streams} streams, {args.step_ms:g} ms a step: {figures['tokens_per_s']:,.0f} tokens/s, "
        f"{figures['ms_per_step']:.2f} ms a step, us a token: {times}",
        flush=True,
    )


if __name__ == "__main__":
    main()
