"""What a load run asks: lengths, prompts, how much output. Seeded, so that two runs ask the same."""

import math
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from .traces import TraceRow

FIRST_TOKEN_ID = 100  # special tokens and bytes stand below it in most vocabularies
_WORDS = (
    *("river", "stone", "light", "garden", "winter", "paper", "window", "music", "bread", "morning", "road", "cloud"),
    *("slowly", "again", "never", "under", "between", "open", "carry", "listen", "quiet", "bright", "seven", "home"),
)


@dataclass(frozen=True)
class Demand:
    """One request to be: its prompt, the tokens to generate, its time in seconds after the start of the run."""

    prompt: Sequence[int] | str
    prompt_len: int
    output_len: int
    arrival: float = 0.0


@dataclass(frozen=True)
class PromptMaker:
    """Makes prompts out of token ids from 100 up to below `vocab_size`, or of as many words."""

    vocab_size: int
    as_text: bool = False
    seed: int = 0

    def prompt(self, row: TraceRow, source: random.Random) -> Sequence[int] | str:
        """A prompt of the row's length. Blocks with the same hash id are the same in every prompt, all else is new."""
        ids = array("l")  # a trace holds millions of them
        for hash_id in row.hash_ids[: math.ceil(row.prompt_len / row.block_len)]:
            ids.extend(self._ids(random.Random(f"{self.seed}/{hash_id}"), row.block_len))
        ids.extend(self._ids(source, row.prompt_len - len(ids)))
        ids = ids[: row.prompt_len]
        return " ".join(_WORDS[i % len(_WORDS)] for i in ids) if self.as_text else ids

    def _ids(self, source: random.Random, count: int) -> list[int]:
        return source.choices(range(FIRST_TOKEN_ID, self.vocab_size), k=max(0, count))


def random_rows(
    count: int, *, input_len: int, output_len: int, range_ratio: float, source: random.Random
) -> list[TraceRow]:
    """Lengths drawn evenly from [length * (1 - range_ratio), length * (1 + range_ratio)], at least 1."""
    return [
        TraceRow(_length(input_len, range_ratio, source), _length(output_len, range_ratio, source))
        for _ in range(count)
    ]


def _length(mean: int, range_ratio: float, source: random.Random) -> int:
    low, high = math.floor(mean * (1 - range_ratio)), math.ceil(mean * (1 + range_ratio))
    return source.randint(max(1, low), max(1, high))
