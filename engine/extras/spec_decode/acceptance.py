"""AcceptanceTracker: the probability that a request's drafted token is accepted, and the step of its next probe."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...core.ports import Drafted

NUM_LEVELS = 32  # acceptance is rounded to 32 levels, so that a search for 64 requests has at most 32 kinds
_DECAY = 0.93  # weight that older drafts keep with each new draft
_MEAN_DECAY = 0.99  # like _DECAY, for the mean over all requests
_PRIOR_WEIGHT = 1.0  # weight, in tried tokens, of the mean over all requests in a request's acceptance
_FIRST_GUESS = 0.6  # acceptance before the first draft: worth a try

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Record:
    """Record of a request's draft tokens, older ones counting less, and of its next probe."""

    accepted: float = 0.0
    tried: float = 0.0
    num_failed_probes: int = 0
    next_probe: int = 0

    def add(self, drafted: Drafted, *, decay: float) -> None:
        num_tried = drafted.num_accepted + (drafted.num_accepted < drafted.num_drafted)
        self.accepted = decay * self.accepted + drafted.num_accepted
        self.tried = decay * self.tried + num_tried


class AcceptanceTracker(Generic[Key]):
    """Tracker of acceptance: the probability that a drafted token is right if its predecessors are. One per engine."""

    def __init__(self) -> None:
        self._records: defaultdict[Key, _Record] = defaultdict(_Record)
        self._mean = _Record(_FIRST_GUESS * _PRIOR_WEIGHT, _PRIOR_WEIGHT)

    def levels(self, requests: Sequence[Key]) -> dict[Key, int]:
        """Return acceptance in NUM_LEVELS levels, rounded down: overestimates cost more than underestimates."""
        prior = _PRIOR_WEIGHT * (self._mean.accepted / self._mean.tried)
        records = [(request, self._records[request]) for request in requests]
        return {
            request: int((record.accepted + prior) / (record.tried + _PRIOR_WEIGHT) * NUM_LEVELS)
            for request, record in records
        }

    def next_probe(self, request: Key) -> int:
        """Return the first step in which the request may be probed again."""
        return self._records[request].next_probe

    def observe(self, request: Key, drafted: Drafted, *, step: int, max_wait: int) -> None:
        """Learn from a draft. The wait until the next probe doubles with each failure, up to `max_wait` steps."""
        record = self._records[request]
        record.add(drafted, decay=_DECAY)
        self._mean.add(drafted, decay=_MEAN_DECAY)
        record.num_failed_probes = 0 if drafted.num_accepted else record.num_failed_probes + 1
        record.next_probe = step + min(2**record.num_failed_probes, max_wait)

    def forget(self, request: Key) -> None:
        """Drop a request that has ended."""
        self._records.pop(request, None)
