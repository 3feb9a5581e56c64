"""Cost of results on disk, beside memory by turns: `python tests/bench/durable_cost.py [PART]`.

`gaps`: tokens/s, gaps between tokens and processor time of two servers under 64 streams, one with `--results FILE` at
full sync. Goal: the P99 gap at most 10 % more, throughput at most 5 % less. `loop`: the event loop's thread time for a
step of 256 sequences. `commits`: transactions with one token of each of 256 sequences. `recovery`: opening a file
with many finished and unfinished jobs; goal: under 2 s with 10,000.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from splitfuse.client.bench.latency import percentile
from splitfuse.engine.core.outputs import OutputDelta
from splitfuse.server.api.native.background import KIND, KeptGenerate
from splitfuse.server.extras.durable.durable_backend import DurableBackend
from splitfuse.server.extras.durable.journal import Journal, KeptJob
from splitfuse.server.extras.durable.records import Changes, Ending, JobRow, dump_result, dump_segment, event_of
from splitfuse.server.extras.durable.sqlite_store import SqliteStore
from splitfuse.server.extras.durable.stored_jobs import StoredJobs
from splitfuse.server.jobs.job import Job
from splitfuse.server.jobs.job_index import JobIndex, ResultLimits
from splitfuse.server.jobs.result_store import ResultStore
from splitfuse.server.process.gc_policy import collecting_nothing

PROMPT = "Once upon a time there was a little girl who had a dog."
PLACES = ("memory", "full", "normal")
PROMPT_LEN, NUM_TOLD, NUM_ANSWERED = 256, 64, 128  # tokens of a job in `recovery`


class TokenStream(asyncio.Protocol):
    """Streamed request over a raw socket, which costs the client next to nothing, with arrival times of tokens."""

    def __init__(self, request: bytes) -> None:
        self.times: list[float] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.times += [time.perf_counter()] * data.count(b"event: token")

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


@dataclass
class Figures:
    """Figures of all turns of one server."""

    gaps: list[float] = field(default_factory=list)
    num_tokens: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    loop_cpu_seconds: float = 0.0

    def show(self, name: str) -> tuple[float, float]:
        """Print the figures. Returns throughput and P99 gap."""
        rate = self.num_tokens / self.seconds
        late = sorted(self.gaps)
        p50, p99 = (1e3 * (percentile(late, percent) or 0.0) for percent in (50, 99))
        cpu, loop_cpu = (1e6 * spent / self.num_tokens for spent in (self.cpu_seconds, self.loop_cpu_seconds))
        print(
            f"{name:>8}: {rate:8,.0f} tokens/s, gap P50 {p50:6.2f} P99 {p99:6.2f} ms, processor {cpu:5.0f} us/token, "
            f"of it the event loop's thread {loop_cpu:4.0f}",
            flush=True,
        )
        return rate, p99


class Server:
    """Server process with results in memory or in a file."""

    def __init__(self, *args: str) -> None:
        command = [sys.executable, "-P", "-m", "splitfuse.server", "serve", "--port", "0", *args]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        words = (word for line in self.process.stdout for word in line.split())
        url = next(word for word in words if word.endswith("/generate"))
        self.port = int(url.rpartition(":")[2].partition("/")[0])

    def cpu_seconds(self) -> tuple[float, float]:
        """Return the processor time so far of all threads, and of the event loop's, which is the process's first."""
        pid = self.process.pid
        return _cpu_seconds(f"/proc/{pid}/stat"), _cpu_seconds(f"/proc/{pid}/task/{pid}/stat")

    async def turn(self, figures: Figures, *, num_streams: int, num_tokens: int) -> None:
        """Run streams that begin at once to their ends."""
        loop, streams = asyncio.get_running_loop(), list[TokenStream]()
        before, start = self.cpu_seconds(), time.perf_counter()
        for number in range(num_streams):
            body = {"prompt": f"{number}. {PROMPT}", "max_tokens": num_tokens, "ignore_eos": True}
            request = _request(json.dumps({**body, "stream": True, "durable": True}).encode(), self.port)
            streams.append(TokenStream(request))
            await loop.create_connection(lambda stream=streams[-1]: stream, "127.0.0.1", self.port)
        await asyncio.gather(*(stream.ended for stream in streams))
        figures.seconds += time.perf_counter() - start
        spent = [after - at_first for after, at_first in zip(self.cpu_seconds(), before, strict=True)]
        figures.cpu_seconds += spent[0]
        figures.loop_cpu_seconds += spent[1]
        for stream in streams:
            assert len(stream.times) == num_tokens, f"{len(stream.times)} tokens came"
            figures.num_tokens += num_tokens
            figures.gaps += [after - at for at, after in zip(stream.times, stream.times[1:], strict=False)]


def gaps(args: argparse.Namespace) -> None:
    """Measure two servers on one machine, which take turns."""
    asyncio.run(_gaps(args))


async def _gaps(args: argparse.Namespace) -> None:
    model = [args.model] if args.model else []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        common = (*model, "--max-num-seqs", str(args.streams))
        servers = {"memory": Server(*common), "full": Server(*common, "--results", f"{folder}/results.db")}
        try:
            figures = {name: Figures() for name in servers}
            for server in servers.values():  # warm-up
                await server.turn(Figures(), num_streams=args.streams, num_tokens=args.tokens)
            for number in range(args.turns):
                for name in sorted(servers, reverse=number % 2 == 0):
                    await servers[name].turn(figures[name], num_streams=args.streams, num_tokens=args.tokens)
        finally:
            for server in servers.values():
                server.process.terminate()
                server.process.communicate()
    (rate, p99), (durable_rate, durable_p99) = (figures[name].show(name) for name in ("memory", "full"))
    print(
        f"    full: throughput x{durable_rate / rate:.3f} (goal: from 0.95), P99 gap x{durable_p99 / p99:.3f} (to 1.10)"
    )


def loop(args: argparse.Namespace) -> None:
    """Measure the event loop's thread: a step's deltas go to the jobs, or to the journal and then to the jobs."""
    spent: dict[str, list[float]] = {kind: [] for kind in PLACES}
    for number in range(args.turns):
        for kind in PLACES if number % 2 else reversed(PLACES):
            with tempfile.TemporaryDirectory(dir=args.folder) as folder:
                spent[kind].append(asyncio.run(_step_cost(args, kind, Path(folder, "results.db"))))
    for kind, seconds in spent.items():
        us = [1e6 * second for second in seconds]
        print(f"{kind:>8}: {statistics.median(us):6.0f} us a step of 256 sequences ({min(us):.0f} to {max(us):.0f})")


async def _step_cost(args: argparse.Namespace, kind: str, path: Path) -> float:
    """Return the thread's seconds for a step."""
    jobs = [Job(f"job{num}", model="m") for num in range(1, 257)]
    sinks, journal = [job.sink for job in jobs], None
    if kind != "memory":
        store = SqliteStore(path, is_synced=kind == "full")
        store.commit(Changes(accepted=[_row(num) for num in range(1, 257)]))
        journal = Journal(store, on_failure=_raise, wall_clock=time.time)
        sinks = [journal.sink(KeptJob(num, job, 1, 3600.0)) for num, job in enumerate(jobs, 1)]
    start = time.thread_time()
    for step in range(args.steps):
        for sink, delta in zip(sinks, _step(step), strict=True):
            sink(delta)
        await asyncio.sleep(args.pace_ms / 1000)
    if journal is not None:
        await journal.read(lambda store: None)
        await asyncio.sleep(0)
    spent = time.thread_time() - start
    assert all(len(job.events) == args.steps for job in jobs)
    if journal is not None:
        await journal.close()
    return spent / args.steps


def commits(args: argparse.Namespace) -> None:
    """Measure sequential transactions, like those of a journal that always has something to write."""
    for kind in PLACES[1:]:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            store = SqliteStore(Path(folder, "results.db"), is_synced=kind == "full")
            store.commit(Changes(accepted=[_row(num) for num in range(1, 257)]))
            bodies = [_segment(step) for step in range(args.commits)]
            times = sorted(_timed(_commit_of(store, num, body)) for num, body in enumerate(bodies, 1))
            size, in_file = sum(map(len, bodies)) / len(bodies), _pages_of_segments(store) / len(bodies)
            store.close()
        p50, p99 = (1e3 * (percentile(times, percent) or 0.0) for percent in (50, 99))
        print(
            f"{kind:>8}: {len(times) / sum(times):7,.0f} commits/s, median {p50:.3f} ms, P99 {p99:.3f} ms; "
            f"a segment has {size / 256:.1f} bytes a token, its pages {in_file / 256:.1f}",
            flush=True,
        )


def recovery(args: argparse.Namespace) -> None:
    """Measure the time from a file to jobs that can go on; the page cache is warm."""
    for counts in ((100_000, 1000, 0), (0, 256, 9744), (0, 10_000, 0)):
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            path = Path(folder, "results.db")
            _fill(path, *(round(count * args.scale) for count in counts))
            with collecting_nothing():  # like a server's start
                asyncio.run(_open(path, path.stat().st_size))


def _fill(path: Path, num_finished: int, num_running: int, num_waiting: int) -> None:
    """Write finished jobs of 128 tokens, running jobs with 64 delivered tokens, and waiting jobs."""
    store = SqliteStore(path, is_synced=False)
    store.begin_process()
    result = dump_result(
        [_delta(0, i, reason="length" if i == NUM_ANSWERED - 1 else None) for i in range(NUM_ANSWERED)]
    )
    for nums in _groups(range(1, num_finished + 1), 1000):
        endings = [Ending(num, "completed", time.time(), time.time() + 3600, result) for num in nums]
        store.commit(Changes(accepted=[_row(num) for num in nums], endings=endings))
    segment = 1
    num_begun = num_finished + num_running
    for nums in _groups(range(num_finished + 1, num_begun + 1), 256):
        store.commit(Changes(accepted=[_row(num, first_segment=segment) for num in nums]))
        for step in range(NUM_TOLD):
            body = dump_segment([(num, event_of(_delta(num, step))) for num in nums], wall=time.time(), monotonic=0.0)
            store.commit(Changes(segment=(segment, body)))
            segment += 1
    for nums in _groups(range(num_begun + 1, num_begun + num_waiting + 1), 256):
        store.commit(Changes(accepted=[_row(num, first_segment=segment) for num in nums]))
    store.close()


async def _open(path: Path, size: int) -> None:
    start = time.perf_counter()
    limits = ResultLimits(ttl=3600, max_results=10_000, max_bytes=2**30)
    index, kinds = JobIndex(limits), {KIND: KeptGenerate(lambda stored: None)}
    backend = DurableBackend(index, StoredJobs(kinds, ttl=limits.ttl), open_store=lambda: SqliteStore(path))
    results = ResultStore(index, backend)
    await results.open()
    spent = time.perf_counter() - start
    assert {len(resumed.kept.job.events) for resumed in results.backend.to_resume} <= {0, NUM_TOLD}
    start = time.perf_counter()
    await results.backend.use(lambda store: store.find("job1"))
    found = time.perf_counter() - start
    print(
        f"{size / 2**20:6.0f} MiB, {len(backend.to_resume):6,} unfinished: open after {spent:.2f} s; a job by id after "
        f"{1e3 * found:.2f} ms",
        flush=True,
    )
    await results.close()


def _row(num: int, *, first_segment: int = 1) -> JobRow:
    stored = {
        "kind": KIND,
        "body": {"prompt": PROMPT, "max_tokens": NUM_ANSWERED},
        "user": "",
        "fingerprint": "f",
    }
    stored |= {"attachment": None, "prompt_token_ids": list(range(PROMPT_LEN)), "seed": 1, "model": "m"}
    stored |= {"num_outputs": 1, "stream_interval": 1, "ttl_s": 3600.0}
    return JobRow(num, f"job{num}", "", time.time(), json.dumps(stored, separators=(",", ":")), first_segment)


def _delta(num: int, step: int, *, reason: str | None = None) -> OutputDelta:
    return OutputDelta(f"job{num}", 0, " there", (400 + step % 9600,), finish_reason=reason)


def _step(step: int) -> list[OutputDelta]:
    return [_delta(num, step) for num in range(1, 257)]


def _segment(step: int) -> bytes:
    events = [(num, event_of(delta)) for num, delta in enumerate(_step(step), 1)]
    return dump_segment(events, wall=time.time(), monotonic=time.monotonic())


def _commit_of(store: SqliteStore, num: int, body: bytes) -> Callable[[], None]:
    return lambda: store.commit(Changes(segment=(num, body)))


def _pages_of_segments(store: SqliteStore) -> int:
    """Return the bytes of the pages that hold the segments."""
    size = store._one("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
    store._db.execute("DELETE FROM segments")
    free = store._one("SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size")
    return min(size, free)


def _groups(nums: range, size: int) -> Iterator[range]:
    return (nums[first : first + size] for first in range(0, len(nums), size))


def _timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _request(body: bytes, port: int) -> bytes:
    head = (
        f"POST /generate HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _cpu_seconds(path: str) -> float:
    fields = Path(path).read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _raise(failure: Exception | None) -> None:
    raise AssertionError(f"the store failed: {failure}")


PARTS = {part.__name__: part for part in (gaps, loop, commits, recovery)}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("part", nargs="?", choices=PARTS, help="default: all")
    add("--model", default=None)
    add("--folder", default=None, help="where the files are; /tmp may be no disk")
    add("--streams", type=int, default=64)
    add("--tokens", type=int, default=200, help="of each stream")
    add("--turns", type=int, default=6, help="of each server, or kind")
    add("--steps", type=int, default=300, help="in a turn of `loop`")
    add("--pace-ms", type=float, default=10, help="between steps of `loop`")
    add("--commits", type=int, default=2000)
    add("--scale", type=float, default=1.0, help="of the numbers of jobs in `recovery`")
    return parser.parse_args()


def main() -> None:
    args = parse()
    for name in [args.part] if args.part else PARTS:
        print(f"{name}:", flush=True)
        PARTS[name](args)


if __name__ == "__main__":
    main()
