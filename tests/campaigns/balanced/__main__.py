"""`make balanced`: docker/haproxy.cfg before two real servers on one PostgreSQL; one is killed, one is drained.

HAProxy and PostgreSQL are killed before that. Jobs are submitted, polled, streamed and resumed through HAProxy alone.
No job answered with 202 may be lost, no event be missing or come twice, and every result must equal an undisturbed
server's. Needs haproxy, postgresql and, unless --no-prometheus, prometheus of the distribution.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from balanced.processes import Haproxy, Prometheus
from balanced.reader import Reader
from postgres_server import PostgresServer
from served import Served

SETTINGS = ("--num-threads", "1", "--seed", "5", "--dtype", "float32", "--no-request-log")
NUM_BODIES = 8


def main() -> int:
    """Run the campaign. Returns 1 if anything was lost, repeated or changed."""
    parser = argparse.ArgumentParser(prog="balanced", description=__doc__)
    parser.add_argument("--jobs", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--no-prometheus", action="store_true", help="where it is not installed")
    options = parser.parse_args()
    with Served(*SETTINGS) as served:
        expected = [undisturbed(served, body(number, options.tokens)) for number in range(NUM_BODIES)]
    postgres = PostgresServer()
    postgres.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            campaign = Campaign(postgres, Path(folder), expected, is_watched=not options.no_prometheus)
            faults = asyncio.run(campaign.run(options.jobs, options.tokens))
    finally:
        postgres.remove()
    print("\n".join(faults) or "nothing wrong")
    return 1 if faults else 0


def body(number: int, num_tokens: int) -> dict[str, Any]:
    """Return one of a few bodies, greedy or sampled with a seed."""
    return {
        "prompt": f"Once upon a time there were {number} ",
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "temperature": 0.8 if number % 2 else 0.0,
        "seed": number,
    }


def undisturbed(served: Served, fields: dict[str, Any]) -> list[int]:
    """Return the tokens of an undisturbed server."""
    with served.client() as client:
        seq_id = client.post("/generate", json=fields).json()["seq_id"]
        while (result := client.get(f"/result/{seq_id}?wait=30").json())["status"] != "completed":
            pass
    token_ids: list[int] = result["token_ids"]
    return token_ids


class Campaign:
    """Campaign on two servers behind HAProxy, which are killed and drained."""

    def __init__(self, postgres: PostgresServer, folder: Path, expected: list[list[int]], *, is_watched: bool) -> None:
        database = postgres.database()
        self._shared = (*SETTINGS, "--results", database, "--results-lease", "3", "--drain-timeout", "5")
        self._postgres = postgres
        self._is_watched = is_watched
        self._folder = folder
        self._expected = expected

    async def run(self, num_jobs: int, num_tokens: int) -> list[str]:
        """Run all jobs. Returns the faults found."""
        with (
            self._server("a-") as first,
            self._server("b-") as second,
            Haproxy(first.port, second.port) as haproxy,
            ExitStack() as stack,
        ):
            prometheus = None
            if self._is_watched:
                targets = self._targets(first, second, haproxy)
                prometheus = stack.enter_context(Prometheus(self._folder, targets))
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(base_url=haproxy.url, timeout=80, trust_env=False, limits=limits) as client:
                readers = [Reader(client, number, body(number % NUM_BODIES, num_tokens)) for number in range(num_jobs)]
                tasks = [asyncio.create_task(reader.run()) for reader in readers]
                await until(lambda: all(reader.seq_id for reader in readers))
                await asyncio.to_thread(haproxy.kill)
                print("killed HAProxy and started it again", flush=True)
                await asyncio.to_thread(self._postgres.stop, mode="immediate")
                await asyncio.to_thread(self._postgres.start)
                print("killed PostgreSQL and started it again", flush=True)
                faults = await self._disturb(first, second, readers, prometheus)
                await asyncio.gather(*tasks)
            tell(readers)
            return faults + [fault for reader in readers for fault in reader.faults()] + self._changed(readers)

    def _server(self, tag: str, *, port: int | None = None) -> Served:
        return Served(*self._shared, "--id-tag", tag, port=port)

    async def _disturb(
        self, first: Served, second: Served, readers: list[Reader], prometheus: Prometheus | None
    ) -> list[str]:
        """Send kill -9 to one server, and SIGTERM to the other once the first is back."""
        first.process.kill()
        first.process.wait()
        begin = time.monotonic()
        with self._server("a-", port=first.port):
            print(f"killed a and started it again, ready after {time.monotonic() - begin:.1f} s", flush=True)
            second.signal(signal.SIGTERM)
            code = await asyncio.to_thread(second.wait, 30.0)
            print(f"drained b, exit code {code}", flush=True)
            with self._server("b-", port=second.port):
                await until(lambda: all(reader.result for reader in readers))
                faults = await asyncio.to_thread(seen_by, prometheus)
        return faults if code == 0 else [*faults, f"SIGTERM ended with exit code {code}"]

    def _changed(self, readers: list[Reader]) -> list[str]:
        return [
            f"job {reader.number} has other tokens than without a disturbance"
            for reader in readers
            if reader.result.get("token_ids") != self._expected[reader.number % NUM_BODIES]
        ]

    def _targets(self, first: Served, second: Served, haproxy: Haproxy) -> dict[str, str]:
        ports = {"server-a:8000": first.port, "server-b:8000": second.port, "haproxy:8405": haproxy.operations}
        return {name: f"127.0.0.1:{port}" for name, port in ports.items()}


async def until(holds: Any, *, seconds: float = 300.0) -> None:
    """Wait until `holds` returns True. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - processes set no event
            await asyncio.sleep(0.05)


def seen_by(prometheus: Prometheus | None) -> list[str]:
    """Return a fault unless Prometheus scraped both servers and HAProxy."""
    if prometheus is None:
        return []
    servers = prometheus.query('max_over_time(up{job="splitfuse"}[10m])')
    sessions = prometheus.query('haproxy_server_sessions_total{proxy="ids",server="a"}')
    tokens = prometheus.query("splitfuse:generation_tokens_total")
    print(f"Prometheus: {len(servers)} servers up, {len(tokens)} count tokens, {len(sessions)} HAProxy", flush=True)
    return [] if list(servers.values()) == [1, 1] and sessions else [f"scraped {servers} and {sessions}"]


def tell(readers: list[Reader]) -> None:
    """Print one line about the jobs."""
    again = sum(reader.result.get("attempt", 1) > 1 for reader in readers)
    on_a = sum(reader.seq_id.startswith("a-") for reader in readers)
    breaks = sum(reader.num_breaks for reader in readers)
    print(
        f"{len(readers)} jobs, {on_a} on a: {breaks} streams broke off and were read on, {again} jobs were taken over"
    )


if __name__ == "__main__":
    sys.exit(main())
