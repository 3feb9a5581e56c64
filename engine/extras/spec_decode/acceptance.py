"""AcceptanceTracker: how likely a drafted token is to be accepted, per request, and when to probe a request again."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...core.ports import Drafted

NUM_LEVELS = 32  # acceptance is rounded to this many steps, so that a choice for 64 requests has 32 kinds at most
_DECAY = 0.93  # weight that older drafts keep with each new one
_MEAN_DECAY = 0.99  # the same for the mean over all requests
_PRIOR_WEIGHT = 1.0  # tried tokens that the mean over all requests counts for in each one
_FIRST_GUESS = 0.6  # before anything has been drafted: worth a try

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Record:
    """Draft tokens, older ones counting less; and when the request may be probed again."""

    accepted: float = 0.0
    tried: float = 0.0
    num_failed_probes: int = 0
    next_probe: int = 0

    def add(self, drafted: Drafted, *, decay: float) -> None:
        num_tried = drafted.num_accepted + (drafted.num_accepted < drafted.num_drafted)
        self.accepted = decay * self.accepted + drafted.num_accepted
        self.tried = decay * self.tried + num_tried


class AcceptanceTracker(Generic[Key]):
    """One per engine. Acceptance: the probability that a drafted token is right, given that those before it are."""

    def __init__(self) -> None:
        self._records: defaultdict[Key, _Record] = defaultdict(_Record)
        self._mean = _Record(_FIRST_GUESS * _PRIOR_WEIGHT, _PRIOR_WEIGHT)

    def levels(self, requests: Sequence[Key]) -> dict[Key, int]:
        """Acceptance in NUM_LEVELS steps, rounded down: too high an estimate costs more than too low a one."""
        prior = _PRIOR_WEIGHT * (self._mean.accepted / self._mean.tried)
        records = [(request, self._records[request]) for request in requests]
        return {
            request: int((record.accepted + prior) / (record.tried + _PRIOR_WEIGHT) * NUM_LEVELS)
            for request, record in records
        }

    def next_probe(self, request: Key) -> int:
        """The first step in which the request may be probed again."""
        return self._records[request].next_probe

    def observe(self, request: Key, drafted: Drafted, *, step: int, max_wait: int) -> None:
        """Learn from a draft; the wait until the next probe doubles with each that fails, up to `max_wait` steps."""
        record = self._records[request]
        record.add(drafted, decay=_DECAY)
        self._mean.add(drafted, decay=_MEAN_DECAY)
        record.num_failed_probes = 0 if drafted.num_accepted else record.num_failed_probes + 1
        record.next_probe = step + min(2**record.num_failed_probes, max_wait)

    def forget(self, request: Key) -> None:
        """The request has ended."""
        self._records.pop(request, None)
