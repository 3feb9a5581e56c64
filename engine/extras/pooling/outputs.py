"""Outputs of pooled requests, in vLLM's shapes."""

from dataclasses import dataclass


@dataclass(slots=True)
class PooledData:
    """Result of one input: an embedding, probabilities, a score, or the states of all tokens."""

    data: list[float] | list[list[float]]

    @property
    def embedding(self) -> list[float]:
        """Embedding of an `embed`."""
        return self.data  # type: ignore[return-value]

    @property
    def probs(self) -> list[float]:
        """Probabilities of a `classify`, by label."""
        return self.data  # type: ignore[return-value]

    @property
    def num_classes(self) -> int:
        """Number of labels."""
        return len(self.data)

    @property
    def score(self) -> float:
        """Score of a pair."""
        (score,) = self.data
        return score  # type: ignore[return-value]


@dataclass(slots=True)
class PoolingRequestOutput:
    """Output of one pooled prompt."""

    request_id: str
    outputs: PooledData
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True
