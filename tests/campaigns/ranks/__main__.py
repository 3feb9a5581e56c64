"""Campaign that kills or stops a rank of a tensor-parallel server at random moments, again and again on one store.

The server must notice in time, every open stream must end, the exit code must tell the cause, and no process may
be left; the next server then completes every request with the tokens of an undisturbed one.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import httpx
from served import SERVE, Served

RANK_LOST_EXIT = 4
_GLOO = Path(__file__).parents[2] / "support/gloo_ranks.py"
# Seconds from the signal until streams have ended, with some for a busy machine.
LIMITS = {"kill": 1.0, "stop": 2.0, "kill rank 0": 1.0}
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
BODIES = [
    {"prompt": f"Once {number}", "max_tokens": 150, "ignore_eos": True, "seed": number, "temperature": number % 2}
    for number in range(6)
]


class Reader(threading.Thread):
    """Reader of a result's stream until the stream ends."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.ended: float | None = None

    def run(self) -> None:
        with suppress(httpx.HTTPError), httpx.stream("GET", self._url, timeout=60, trust_env=False) as stream:
            for _ in stream.iter_lines():
                pass
        self.ended = time.monotonic()


def ranks_of(server: Served) -> list[int]:
    """Return the processes of the other ranks."""
    found: list[int] = []
    for path in Path(f"/proc/{server.process.pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(pid) for pid in path.read_text().split()]
    return [pid for pid in found if b"rank_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def tokens(server: Served, ids: Sequence[str]) -> Iterator[list[int]]:
    """Yield the tokens of every result, once it is complete."""
    with server.client(timeout=120) as client:
        for seq_id in ids:
            while (result := client.get(f"/result/{seq_id}?wait=60").json())["status"] not in ("completed", "failed"):
                pass
            yield result["token_ids"]


def submit(server: Served) -> list[str]:
    with server.client() as client:
        return [client.post("/generate", json=body).json()["seq_id"] for body in BODIES]


def lose_a_rank(server: Served, how: str, rng: random.Random, ids: Sequence[str]) -> list[str]:
    """Kill or stop a rank after a moment. Returns the faults found."""
    ranks, readers = ranks_of(server), [Reader(f"{server.url}/result/{seq_id}/stream") for seq_id in ids]
    for reader in readers:
        reader.start()
    time.sleep(rng.uniform(0, 0.4))
    start = time.monotonic()
    if how == "kill rank 0":
        server.process.kill()
    else:
        os.kill(rng.choice(ranks), SIGNALS[how])
    for reader in readers:
        reader.join(20)
    code = server.wait(20)
    wrong = [] if all(reader.ended for reader in readers) else ["a stream did not end"]
    slowest = max((reader.ended or start) - start for reader in readers)
    print(f"  {how}: streams ended after {slowest:.2f} s, exit code {code} after {time.monotonic() - start:.2f} s")
    if slowest > LIMITS[how]:
        wrong.append(f"noticed after {slowest:.2f} s")
    if code != (-signal.SIGKILL if how == "kill rank 0" else RANK_LOST_EXIT):
        wrong.append(f"exit code {code}: {server.log[-500:]}")
    deadline = time.monotonic() + 2
    while left := [pid for pid in ranks if Path(f"/proc/{pid}").exists()]:
        if time.monotonic() > deadline:
            return [*wrong, f"{len(left)} ranks are left"]
        time.sleep(0.01)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="ranks", description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--size", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gloo", action="store_true", help="ranks as on GPUs, with steps that run ahead")
    args = parser.parse_args()
    rng, faults = random.Random(args.seed), []
    with tempfile.TemporaryDirectory() as folder:
        options = (
            "--device", "cpu", "--dtype", "float32", "--num-kv-blocks", "500", "--tensor-parallel-size", str(args.size),
            "--results", f"{folder}/results.db", *["--async-scheduling", "--max-num-seqs", "8"] * args.gloo,
        )  # fmt: skip
        program = (sys.executable, str(_GLOO)) if args.gloo else SERVE
        with Served(*options, program=program) as server:
            expected = list(tokens(server, submit(server)))
        earlier: list[str] = []
        for trial in range(args.trials + 1):
            with Served(*options, program=program) as server:
                if list(tokens(server, earlier)) != expected[: len(earlier)]:
                    faults.append(f"trial {trial}: other tokens after the restart")
                if trial == args.trials:
                    break
                earlier = submit(server)
                how = list(LIMITS)[trial % len(LIMITS)]
                faults += [f"trial {trial}, {how}: {what}" for what in lose_a_rank(server, how, rng, earlier)]
    print("\n".join(faults) or f"{args.trials} ranks lost, nothing wrong")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
