"""Requests of a load: lengths, prompts and arrival times. A seed makes two runs send the same requests."""

import hashlib
import itertools
import math
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from .traces import TraceRow, at_least_1

FIRST_TOKEN_ID = 100  # most vocabularies have special tokens and bytes below
_WORDS = (
    *("river", "stone", "light", "garden", "winter", "paper", "window", "music", "bread", "morning", "road", "cloud"),
    *("slowly", "again", "never", "under", "between", "open", "carry", "listen", "quiet", "bright", "seven", "home"),
)


def arrivals(num_requests: int, *, rate: float, burstiness: float, source: random.Random) -> list[float]:
    """Return arrival times at `rate` requests per second on average; an infinite rate sends all at once.

    Gaps follow a gamma distribution of shape `burstiness`: 1 is a Poisson process, less comes in bursts, more comes
    evenly, infinity at equal distances. As in `vllm bench serve` the times are stretched so that the last one is
    at num_requests / rate: runs of one rate take the same time whatever the seed.
    """
    if num_requests == 0 or math.isinf(rate):
        return [0.0] * num_requests
    if math.isinf(burstiness):
        gaps = [1 / rate] * num_requests
    else:
        gaps = [source.gammavariate(burstiness, 1 / (rate * burstiness)) for _ in range(num_requests)]
    times = list(itertools.accumulate(gaps))
    stretch = num_requests / rate / times[-1] if times[-1] > 0 else 1.0
    return [time * stretch for time in times]


@dataclass(frozen=True)
class LoadRequest:
    """Request to send: its prompt, the tokens to generate, its arrival in seconds after the start of the run."""

    prompt: Sequence[int] | str
    prompt_len: int
    output_len: int
    arrival: float = 0.0


@dataclass(frozen=True)
class PromptMaker:
    """Maker of prompts: token ids from 100 to below `vocab_size`, or as many words.

    Without a `vocab_size` the ids are any 32-bit numbers: enough for a cache, to which only their equality matters.
    """

    vocab_size: int | None
    as_text: bool = False
    seed: int = 0

    def prompt(self, row: TraceRow, source: random.Random) -> Sequence[int] | str:
        """Return a prompt of the row's length: token ids, or words if `as_text`."""
        ids = self.token_ids(row, source)
        return " ".join(_WORDS[i % len(_WORDS)] for i in ids) if self.as_text else ids

    def token_ids(self, row: TraceRow, source: random.Random) -> Sequence[int]:
        """Return token ids of a prompt. Blocks with equal hash ids are equal in every prompt; the rest is random."""
        hash_ids = row.hash_ids[: math.ceil(row.prompt_len / row.block_len)]
        content = b"".join(self._block(hash_id, 4 * row.block_len) for hash_id in hash_ids)
        content += source.randbytes(max(0, 4 * row.prompt_len - len(content)))
        ids = array("i", content[: 4 * row.prompt_len])  # an array, because a trace has millions of ids
        if self.vocab_size is not None:
            span = self.vocab_size - FIRST_TOKEN_ID
            ids = array("i", [FIRST_TOKEN_ID + value % span for value in ids])
        return ids

    def _block(self, hash_id: int, num_bytes: int) -> bytes:
        # for a block of 64 tokens a seeded random.Random takes 23 us, this with its share of the rest 8
        return hashlib.shake_128(f"{self.seed}/{hash_id}".encode()).digest(num_bytes)


def normal_rows(count: int, *, input_len: float, output_len: float, seed: int) -> list[TraceRow]:
    """Return lengths from Normal(mean, 0.3 mean), at least 1 token: FastGen's load (arXiv 2401.08671)."""
    gauss = random.Random(seed).gauss
    return [
        TraceRow(at_least_1(gauss(input_len, 0.3 * input_len)), at_least_1(gauss(output_len, 0.3 * output_len)))
        for _ in range(count)
    ]


def random_rows(
    count: int, *, input_len: int, output_len: int, range_ratio: float, source: random.Random
) -> list[TraceRow]:
    """Return lengths sampled uniformly from [length * (1 - range_ratio), length * (1 + range_ratio)], at least 1."""
    return [
        TraceRow(_length(input_len, range_ratio, source), _length(output_len, range_ratio, source))
        for _ in range(count)
    ]


def _length(mean: int, range_ratio: float, source: random.Random) -> int:
    low, high = math.floor(mean * (1 - range_ratio)), math.ceil(mean * (1 + range_ratio))
    return source.randint(max(1, low), max(1, high))
