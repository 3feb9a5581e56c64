"""DraftLengths: how many tokens to draft for each request, 0 where plain decoding is the better choice.

Drafting j tokens that are each accepted with probability p brings p + p² + … + pʲ more tokens (Leviathan et al. 2023)
and costs what the pass takes longer, and the drafter's time. What is maximised is tokens per second of all requests
together. p is measured per request; seconds come from CostModels that learn from steps that only decode: there a token
more costs far less than in a prompt's chunk, whose pass is bound by arithmetic.

Estimates can be wrong, so there is an account: it gets 0.5 % of the time that plain decoding takes and every second
that accepted drafts saved, and pays for every second spent on drafts, for reading prompts in instalments. When it is
empty nothing is drafted, so whatever a drafter does, 1 % is about all that it can cost in the long run. No torch and no
clock of its own.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

from .cost_model import CPU_SECONDS, CostModel

_NUM_LEVELS = 32  # p is rounded to this many steps, so that a choice for 64 requests looks at 32 kinds at most
_MEMORY = 0.93  # what one more draft leaves of the older ones' weight
_MEAN_MEMORY = 0.99  # the same for the mean over all requests
_PRIOR_WEIGHT = 1.0  # tried tokens that the mean over all requests counts for in each one
_FIRST_GUESS = 0.6  # p before anything has been drafted: worth a try
_LEAST_GAIN = 1.05  # of the rate; less is not worth the risk
_MAX_WAIT = 128  # steps between two probes of a request whose drafts fail
_MAX_WAIT_IF_RICH = 8  # the same while the account holds more than half of what it can
_SHARE_AT_RISK = 0.005  # of the time of plain decoding
_FIRST_CREDIT, _MOST_CREDIT = 1.0, 16.0  # in plain steps
_MOST_DEBT_S = 2.0
_REMAINING = 0.5  # of the tokens that an output may still have, those counted on to repay what reading it costs
_WRITE_OFF = 0.01  # of the time of plain decoding, or half of what was saved: so much of the reading is paid at a time

Key = TypeVar("Key", bound=Hashable)


class Drafted(NamedTuple):
    """What became of one request's draft."""

    num_drafted: int
    num_accepted: int


@dataclass(slots=True)
class _Record:
    """A request's drafts, older ones counting less; and when it may be probed again."""

    accepted: float = 0.0
    tried: float = 0.0
    num_failed_probes: int = 0
    next_probe: int = 0

    def level(self, mean: float) -> int:
        """The acceptance, rounded down: too high an estimate costs more than too low a one."""
        accepted, tried = self.accepted + _PRIOR_WEIGHT * mean, self.tried + _PRIOR_WEIGHT
        return int(accepted / tried * _NUM_LEVELS)


class Costs(NamedTuple):
    """Seconds, for one step."""

    plain: float  # without drafts
    token: float  # one more drafted token: to draft and to verify it
    round: float  # one more round of the drafter, for however many requests
    start: float  # to call the drafter at all


def best_lengths(
    counts: Mapping[int, int], *, num_decodes: int, costs: Costs, max_length: int
) -> tuple[dict[int, int], float]:
    """The draft length for each level of acceptance that brings the most tokens per second, and that rate.

    counts: level → number of requests, among num_decodes that decode. A ratio is maximised by taking whatever brings
    more than the ratio itself (Dinkelbach 1967), so every level's length follows from one number.
    """
    best: dict[int, int] = {}
    best_rate = num_decodes / costs.plain
    least_rate = best_rate * _LEAST_GAIN
    for cap in range(1, max_length + 1) if costs.round else (max_length,):
        rate = num_decodes / costs.plain
        for _ in range(4):
            lengths = {level: _length(level, rate * costs.token, cap) for level in counts}
            num_tokens = num_decodes + sum(n * _expected(level, lengths[level]) for level, n in counts.items())
            num_drafted = sum(n * lengths[level] for level, n in counts.items())
            seconds = costs.plain + costs.start + costs.round * cap + costs.token * num_drafted
            if num_tokens / seconds <= rate * 1.0001:
                break
            rate = num_tokens / seconds
            if rate > max(best_rate, least_rate):
                best, best_rate = lengths, rate
    return best, best_rate


def _length(level: int, least: float, most: int) -> int:
    """The longest draft whose last token is accepted with a probability of at least `least`."""
    p, reached, length = level / _NUM_LEVELS, 1.0, 0
    while length < most and (reached := reached * p) >= least:
        length += 1
    return length


@lru_cache(maxsize=4096)
def _expected(level: int, length: int) -> float:
    """Accepted tokens of a draft of this length."""
    p = level / _NUM_LEVELS
    return float(length) if p == 1 else p * (1 - p**length) / (1 - p)


class DraftLengths(Generic[Key]):
    """One per engine. Requests are any keys."""

    def __init__(self, max_length: int, *, prior: tuple[float, float, float] = CPU_SECONDS) -> None:
        """`prior`: of the cost model of a step, until steps have been seen."""
        self._max_length = max_length
        self.step_cost = CostModel(prior)
        # Seconds of the drafter: per call, per token read or drafted, per round. Almost nothing until measured.
        self.draft_cost = CostModel((1e-5, 1e-6, 1e-6))
        self._records: dict[Key, _Record] = {}
        self._mean = _Record(_FIRST_GUESS * _PRIOR_WEIGHT, _PRIOR_WEIGHT)
        self._credit_s: float | None = None
        self._unpaid_s = 0.0  # spent on reading, and not yet taken from the account
        self._num_steps = 0

    @property
    def acceptance(self) -> float:
        """The probability that a drafted token is accepted, given that those before it are; lately, of all requests."""
        return self._mean.accepted / self._mean.tried

    def choose(
        self, requests: Sequence[Key], *, context: int, unread: Mapping[Key, tuple[int, int]] | None = None
    ) -> dict[Key, int]:
        """Tokens to draft for each of the requests that decode in the next step; those that get none are left out.

        context: tokens that they have in the cache, all together. unread: for requests that cost something before the
        first draft, the tokens to read and the tokens that their output may still have.
        """
        if not requests:
            return {}
        self._num_steps += 1
        plain = self.step_cost.predict(len(requests), context)
        if self._credit_s is None:
            self._credit_s = _FIRST_CREDIT * plain
        if self._credit_s <= 0:
            return {}
        costs = Costs(
            plain, self.step_cost.b + self.draft_cost.b, self.draft_cost.c * (self._max_length > 1), self.draft_cost.a
        )
        mean = self.acceptance
        levels = {request: self._record(request).level(mean) for request in requests}
        counts: dict[int, int] = {}
        for level in levels.values():
            counts[level] = counts.get(level, 0) + 1
        best, rate = best_lengths(counts, num_decodes=len(requests), costs=costs, max_length=self._max_length)
        chosen = {request: length for request, level in levels.items() if (length := best.get(level, 0))}
        unread = unread or {}
        # What a token less to decode is worth, times how many fewer a request will have.
        worth = (rate * plain / len(requests) - 1) * _REMAINING * plain / len(requests)
        for request, (num_unread, num_left) in unread.items():
            if num_unread * self.draft_cost.b > worth * num_left or self._unpaid_s > _MOST_CREDIT * plain:
                chosen.pop(request, None)
        idle = (request for request in requests if request not in chosen and request not in unread)
        return chosen | self._probes(idle, costs)

    def _probes(self, requests: Iterable[Key], costs: Costs) -> dict[Key, int]:
        """One token each for requests whose time has come, as far as the account reaches."""
        assert self._credit_s is not None
        probes = {}
        left = self._credit_s - costs.start - costs.round
        for request in requests:
            if self._records[request].next_probe <= self._num_steps and left > costs.token:
                probes[request] = 1
                left -= costs.token
        return probes

    def settle(
        self,
        drafted: Mapping[Key, Drafted],
        *,
        num_decodes: int,
        context: int,
        draft_s: float,
        read_s: float = 0.0,
    ) -> None:
        """Book a step in which so many requests decoded: what became of its drafts and how long drafting took.

        read_s: how much of draft_s went into reading what will be of use for longer.
        """
        if not num_decodes:
            return
        plain = self.step_cost.predict(num_decodes, context)
        saved = 0.0
        is_rich = self._credit_s is not None and self._credit_s > _MOST_CREDIT / 2 * plain
        for request, (num_drafted, num_accepted) in drafted.items():
            if num_drafted:
                self._book(request, num_drafted, num_accepted, max_wait=_MAX_WAIT_IF_RICH if is_rich else _MAX_WAIT)
                saved += num_accepted * plain / num_decodes - num_drafted * self.step_cost.b
        credit = _FIRST_CREDIT * plain if self._credit_s is None else self._credit_s
        self._unpaid_s += read_s
        paid = min(self._unpaid_s, max(_WRITE_OFF * plain, saved / 2))
        self._unpaid_s -= paid
        credit += _SHARE_AT_RISK * plain + saved - (draft_s - read_s) - paid
        self._credit_s = min(max(credit, -_MOST_DEBT_S), _MOST_CREDIT * plain)

    def _book(self, request: Key, num_drafted: int, num_accepted: int, *, max_wait: int) -> None:
        num_tried = num_accepted + (num_accepted < num_drafted)
        record = self._record(request)
        for kept in (record, self._mean):
            memory = _MEMORY if kept is record else _MEAN_MEMORY
            kept.accepted = memory * kept.accepted + num_accepted
            kept.tried = memory * kept.tried + num_tried
        record.num_failed_probes = 0 if num_accepted else record.num_failed_probes + 1
        record.next_probe = self._num_steps + min(2**record.num_failed_probes, max_wait)

    def _record(self, request: Key) -> _Record:
        record = self._records.get(request)
        if record is None:
            record = self._records[request] = _Record()
        return record

    def forget(self, request: Key) -> None:
        """The request has ended."""
        self._records.pop(request, None)
