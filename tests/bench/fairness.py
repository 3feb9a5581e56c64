"""Cost of fairness: a key that fills every seat, with and without another key that asks for one token at a time.

`python tests/bench/fairness.py [--model demo] [--max-tokens 150] [--n 64] [--requests 8]`: a server process with two
keys, float32. Goals: each answer of the other key within 2 s, equal tokens, at most 5 % less throughput. Steps and CPU
seconds of the server stand beside the wall time, for machines that others use too.

Each phase prints a digest of the greedy key's tokens. So phases may run by themselves, with a server each:
`--phases alone`, then `--phases beside --every SECONDS`. `--seconds 150` cuts a phase short, for a load of hours: then
all tokens that two phases have both come to are compared.
"""

import argparse
import asyncio
import hashlib
import itertools
import json
import time
from typing import Any

import httpx

from splitfuse.client.server_process import serve

A, B, ADMIN = ({"Authorization": f"Bearer key-of-tenant-{name}"} for name in ("a", "b", "admin"))
NUM_SHORT = 10


def num_steps(stats: Any) -> int:
    """Return the number of steps so far."""
    return int(stats["steps"][-1]["step"]) + 1 if stats["steps"] else 0


def cpu_seconds(pid: int) -> float:
    """Return the user and system seconds of a process."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def greedy(client: httpx.AsyncClient, args: argparse.Namespace) -> list[Any]:
    """Send the greedy requests and return the tokens of their outputs, whole or after `--seconds`."""
    body = {"prompt": "Once upon a time", "n": args.n, "max_tokens": args.max_tokens, "ignore_eos": True}
    posts = [await client.post("/generate", json={**body, "seed": seed}, headers=A) for seed in range(args.requests)]
    ends, urls = [], [post.raise_for_status().json()["result_url"] for post in posts]
    if args.seconds:
        await asyncio.sleep(args.seconds)
        parts = [(await client.get(url, headers=A)).raise_for_status().json() for url in urls]
        for url in urls:
            await client.delete(url, headers=A)
        return [[output["token_ids"] for output in part["outputs"]] for part in parts]
    for url in urls:
        end = {"status": "queued"}
        while end["status"] in ("queued", "running"):
            end = (await client.get(url, params={"wait": 60}, headers=A)).raise_for_status().json()
        assert end["status"] == "completed", end
        ends.append([output["token_ids"] for output in end["outputs"]])
    return ends


def num_equal(ones: list[Any], others: list[Any]) -> int:
    """Return how many tokens both phases have. Raises AssertionError if one of them differs."""
    total = 0
    for one, other in zip(itertools.chain(*ones), itertools.chain(*others), strict=True):
        num_both = min(len(one), len(other))
        assert one[:num_both] == other[:num_both], "a token of the greedy key depends on the other key"
        total += num_both
    return total


async def ask(client: httpx.AsyncClient, *, every: float) -> list[float]:
    """Ask for one token again and again; return the seconds of each answer."""
    waits = []
    for _ in range(NUM_SHORT):
        await asyncio.sleep(every)
        start = time.perf_counter()
        body = {"prompt": "hello", "max_tokens": 1, "temperature": 0}
        (await client.post("/v1/completions", json=body, headers=B)).raise_for_status()
        waits.append(time.perf_counter() - start)
    return waits


async def measure(args: argparse.Namespace) -> None:
    """Run the greedy key alone or beside the other key, a phase after the other."""
    keys = (A["Authorization"][7:], B["Authorization"][7:])
    flags = {"dtype": "float32", "num_threads": args.num_threads, "max_num_seqs": args.seats}
    with serve(args.model, api_key=",".join(keys), admin_key=ADMIN["Authorization"][7:], **flags) as server:
        async with httpx.AsyncClient(base_url=server.base_url, timeout=600, trust_env=False) as client:
            every, first = args.every, list[Any]()
            for phase in args.phases.split(","):
                before = (await client.get("/stats", headers=ADMIN)).json()
                start, cpu = time.perf_counter(), cpu_seconds(server._process.pid)
                asking = asyncio.create_task(ask(client, every=every)) if phase == "beside" else None
                ends = await greedy(client, args)
                wall, cpu = time.perf_counter() - start, cpu_seconds(server._process.pid) - cpu
                assert asking is None or asking.done(), "the greedy key ended first; ask more often or take more tokens"
                waits = [] if asking is None else await asking
                every = wall / (NUM_SHORT + 4)
                num_tokens, first = sum(map(len, itertools.chain(*ends))), first or ends
                stats = (await client.get("/stats", headers=ADMIN)).json()
                figures = {
                    "phase": phase,
                    "policy": stats["scheduling_policy"],
                    "wall_s": round(wall, 1),
                    "cpu_s": round(cpu, 1),
                    "tokens_per_s": round(num_tokens / wall),
                    "tokens_per_cpu_s": round(num_tokens / cpu),
                    "digest": hashlib.sha256(json.dumps(ends).encode()).hexdigest()[:16],
                    "equal_tokens": num_equal(first, ends),
                    "steps": num_steps(stats) - num_steps(before),
                    "cost": {name: stats["cost_model"][name] for name in "abc"},
                    "preemptions": stats["num_preemptions"] - before["num_preemptions"],
                    "waits_s": [round(wait, 3) for wait in waits],
                }
                print(json.dumps(figures), flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--seconds", type=float, help="length of a phase, if the requests are not to end")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=150)
    parser.add_argument("--seats", type=int, default=64)
    parser.add_argument("--num-threads", type=int, default=1)
    parser.add_argument("--phases", default="alone,beside,alone")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between the other key's requests in a phase")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
