"""PoolingParams: fields of one pooled request; the similarity of two embeddings. Knows no tensors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import NamedTuple

from ...core.sampling_params import SamplingParams
from ...errors import InvalidRequestError

NO_POOLING = (
    "this model makes text and no embeddings; serve an embedding model, or start with "
    '--pooler-config \'{"pooling_type": "LAST"}\' to take its last hidden states'
)


class Pair(NamedTuple):
    """Query and document whose fit is scored."""

    query: str
    document: str


@dataclass(frozen=True, kw_only=True)
class PoolingParams:
    """Fields under vLLM's names. Raises InvalidRequestError.

    `dimensions`: keep the first ones of an embedding, and normalise again (Kusupati et al. 2022, Matryoshka).
    `normalize`, `use_activation`: None is the model's way. `truncate_prompt_tokens`: most tokens of an input, -1 for
    as many as the model takes; None refuses longer ones. `prompt_name`: one of the model's prompts, written before a
    text; None is the model's default.
    """

    dimensions: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    truncate_prompt_tokens: int | None = None
    prompt_name: str | None = None
    add_special_tokens: bool = True
    priority: int = 0
    is_background: bool = False
    timeout_ms: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("dimensions", 1), ("truncate_prompt_tokens", -1)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least or value == 0):
                raise InvalidRequestError(f"{name} must be a whole number from {least} on, not {value!r}", param=name)

    def sampling_params(self, *, salt: str, pooling: object) -> SamplingParams:
        """Return the parameters of the engine's request."""
        return SamplingParams(
            max_tokens=1,
            temperature=0.0,
            cache_salt=salt,
            priority=self.priority,
            is_background=self.is_background,
            timeout_ms=self.timeout_ms,
            pooling=pooling,
        )


def similarity(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the cosine of two vectors; 0 if one is zero."""
    length = math.hypot(*first) * math.hypot(*second)
    return math.fsum(map(mul, first, second)) / length if length else 0.0
