"""`make fuzz MINUTES=30`: numbered hostile requests against a server process, until time is over or an answer is wrong.

Prints counts by kind and status. `ARGS="--case N"` sends one case again.
"""

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count, islice

from fuzz.cases import case
from fuzz.verdict import Verdict, verdict
from postgres_server import PostgresServer
from served import Served

# Small, so that the longest valid request takes only seconds.
SETTINGS = ("--max-model-len", "256", "--num-kv-blocks", "200", "--max-results", "500", "--num-threads", "1")
CANARY = {"prompt": "Long ago", "max_tokens": 100, "temperature": 0.8, "seed": 3, "ignore_eos": True}
_NUM_THREADS = 4
_ROUND = 200  # cases between two checks of the canary and the log


def main() -> int:
    """Run the campaign. Returns 1 if the server did anything wrong."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000, help="chooses the first case's number")
    parser.add_argument("--case", type=int, help="send this one and show what comes back")
    parser.add_argument("--replicas", type=int, default=1, help="through serve --replicas, on a PostgreSQL")
    options = parser.parse_args()
    with ExitStack() as stack:
        shared: tuple[str, ...] = ()
        if options.replicas > 1:
            postgres = PostgresServer()
            postgres.start()
            stack.callback(postgres.remove)
            shared = ("--replicas", str(options.replicas), "--results", postgres.database())
        served = stack.enter_context(Served(*SETTINGS, *shared, is_forked=not shared))
        if options.case is not None:
            return _one(served, options.case)
        first, has_proxy = options.seed * 10**7, options.replicas > 1
        return _many(served, first=first, seconds=60 * options.minutes, has_proxy=has_proxy)


def _one(served: Served, number: int) -> int:
    print(case(number).data)
    judged = verdict(served, case(number))
    print(f"status {judged.status}; {judged.fault or 'nothing wrong'}")
    print(served.log)
    return int(judged.fault is not None)


def _many(served: Served, *, first: int, seconds: float, has_proxy: bool) -> int:
    print(f"cases from {first} on, for {seconds:.0f} s, against {served.url}", flush=True)
    judge = partial(verdict, served, has_proxy=has_proxy)
    numbers, deadline = count(first), time.monotonic() + seconds
    expected = _canary(served)
    seen: Counter[tuple[str, int | None]] = Counter()
    faults: list[str] = []
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        while time.monotonic() < deadline and not faults:
            start = time.monotonic()
            judged = list(pool.map(lambda number: judge(case(number)), islice(numbers, _ROUND)))
            seen.update((result.case.kind, result.status) for result in judged)
            faults = [_told(result) for result in judged if result.fault] + _house_faults(served, expected)
            rate = _ROUND / (time.monotonic() - start)
            print(f"{seen.total()} cases, {rate:.0f} per second, {len(faults)} faults", flush=True)
    faults += _last_faults(served)
    for kind in sorted({kind for kind, _ in seen}):
        counts = {status: number for (of, status), number in sorted(seen.items(), key=str) if of == kind}
        print(f"{kind:10} {counts}")
    print("\n".join(faults) or f"{seen.total()} cases, nothing wrong")
    return int(bool(faults))


def _told(judged: Verdict) -> str:
    again = f'make fuzz ARGS="--case {judged.case.number}"'
    return f"case {judged.case.number} ({judged.case.kind}): {judged.fault}; again: {again}"


def _canary(served: Served) -> object:
    with served.client() as client:
        return client.post("/v1/completions", json=CANARY).json()["choices"]


def _house_faults(served: Served, expected: object) -> list[str]:
    """Return faults beside the cases: a dead server, a traceback, a bad /health, another answer to the canary."""
    if served.process.poll() is not None:
        return [f"the server ended with {served.process.returncode}: {served.log[-2000:]}"]
    checks = {
        "a traceback in the log": "Traceback" not in served.log,
        "/health is not 200": served.status("/health", timeout=5.0) == 200,
        "the canary's answer has changed": _canary(served) == expected,
    }
    return [f"{fault}; the log ends: {served.log[-1500:]}" for fault, is_fine in checks.items() if not is_fine]


def _last_faults(served: Served) -> list[str]:
    try:
        served.until_idle()
    except AssertionError as exc:
        return [str(exc)]
    return []


if __name__ == "__main__":
    sys.exit(main())
