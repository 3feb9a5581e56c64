"""Gaps of eight chats, with and without thousands of texts that the embedding model beside them reads.

`python tests/bench/embedding_gaps.py MODEL EMBEDDER [--rounds 5] [--seconds 20] [--texts 5000]`: one server. The two
kinds of rounds take turns; the texts are sent again until a round ends. Goal: the P99 gap grows by at most 10 %.
"""

import argparse
import asyncio
import contextlib
import random
import statistics
import time

import httpx

from splitfuse.client.server_process import serve

NUM_CHATS = 8


async def chat(client: httpx.AsyncClient, gaps: list[float], end: float) -> None:
    """Stream answers until `end`; note the seconds between tokens."""
    body = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "stream": True}
    while time.perf_counter() < end:
        async with client.stream("POST", "/generate", json=body) as response:
            last = None
            async for line in response.aiter_lines():
                if not line.startswith("data:"):
                    continue
                now = time.perf_counter()
                if last is not None:
                    gaps.append(now - last)
                last = now
                if now > end:
                    break


async def embed(client: httpx.AsyncClient, texts: list[str], counts: list[int]) -> None:
    """Embed the texts again and again, 100 in a request."""
    while True:
        for begin in range(0, len(texts), 100):
            answer = await client.post("/v1/embeddings", json={"input": texts[begin : begin + 100]})
            answer.raise_for_status()
            counts.append(len(answer.json()["data"]))


async def one_round(url: str, seconds: float, texts: list[str]) -> tuple[float, float, float]:
    """Return the P99 gap, tokens per second and texts per second."""
    gaps: list[float] = []
    counts: list[int] = []
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        reading = asyncio.create_task(embed(client, texts, counts)) if texts else None
        end = time.perf_counter() + seconds
        await asyncio.gather(*(chat(client, gaps, end) for _ in range(NUM_CHATS)))
        if reading is not None:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
    return statistics.quantiles(gaps, n=100)[98], len(gaps) / seconds, sum(counts) / seconds


def main() -> None:
    """Print a line for each round, then the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("embedder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--texts", type=int, default=5000)
    args = parser.parse_args()
    rng = random.Random(0)
    words = ["rain", "falls", "on", "bread", "while", "people", "walk", "home", "along", "rivers"]
    texts = [" ".join(rng.choices(words, k=40)) for _ in range(args.texts)]
    ratios = []
    with serve(args.model, embedding_model=args.embedder) as server:
        asyncio.run(one_round(server.base_url, 3, texts[:200]))
        for _ in range(args.rounds):
            alone = asyncio.run(one_round(server.base_url, args.seconds, []))
            beside = asyncio.run(one_round(server.base_url, args.seconds, texts))
            ratios.append(beside[0] / alone[0])
            print(
                f"P99 gap {alone[0] * 1e3:.1f} -> {beside[0] * 1e3:.1f} ms, "
                f"{alone[1]:.0f} -> {beside[1]:.0f} tokens/s, {beside[2]:.0f} texts/s",
                flush=True,
            )
    print(f"median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
