"""Texts per second of embeddings: LLM.embed and sentence-transformers by turns, in one process, on the same weights.

    python tests/bench/embeddings.py FOLDER [--dtype float32] [--lengths 32 256] [--pairs 5]

Wall and CPU seconds of each: on a busy machine CPU seconds say more. Needs the package sentence-transformers.
"""

import argparse
import os
import random
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from sentence_transformers import SentenceTransformer

from splitfuse.engine import LLM


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Return wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def texts_of(llm: LLM, *, length: int, count: int) -> list[str]:
    """Random words that make `length` tokens with the special ones."""
    rng, words = random.Random(length), ["rain", "bread", "house", "river", "green", "night", "music", "paper"]
    return [" ".join(rng.choice(words) for _ in range(length - 2)) for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--count", type=int, default=0)
    args = parser.parse_args()
    llm = LLM(args.folder, dtype=args.dtype, num_threads=args.threads)
    theirs = SentenceTransformer(args.folder, device="cpu", model_kwargs={"dtype": getattr(torch, args.dtype)})
    theirs.max_seq_length = 512
    torch.set_num_threads(args.threads)
    for length in args.lengths:
        texts = texts_of(llm, length=length, count=args.count or 4096 // length)
        ours_vector = torch.tensor(llm.embed(texts[:1])[0].outputs.embedding)
        their_vector = torch.tensor(theirs.encode(texts[:1])[0]).float()
        cosine = torch.nn.functional.cosine_similarity(ours_vector, their_vector, dim=0)
        calls = partial(llm.embed, texts), partial(theirs.encode, texts, batch_size=32)
        rows = [[timed(call) for call in calls] for _ in range(args.pairs)]
        ours, others = ([len(texts) / median(row[side][kind] for row in rows) for kind in (0, 1)] for side in (0, 1))
        ratios = [median(row[1][kind] / row[0][kind] for row in rows) for kind in (0, 1)]
        print(
            f"{length} tokens: {ours[0]:.1f} texts/s wall, {ours[1]:.1f} CPU; sentence-transformers {others[0]:.1f}, "
            f"{others[1]:.1f}; ratio {ratios[0]:.2f} wall, {ratios[1]:.2f} CPU; cosine {cosine:.7f}; "
            f"load {os.getloadavg()[0]:.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
