"""DraftLengths: how many tokens to draft for each request, 0 where plain decoding is the better choice.

Drafting j tokens that are each accepted with probability p brings p + p² + … + pʲ more tokens (Leviathan et al. 2023)
and costs what the pass takes longer, and the drafter's time. What is maximised is tokens per second of all requests
together. p is measured per request; what steps take is learned by StepTimes from those that only decode: there a token
more costs far less than in a prompt's chunk, whose pass is bound by arithmetic.

Estimates can be wrong, so there is an account: it gets 0.5 % of the time that plain decoding takes and every second
that accepted drafts saved, and pays for every second spent on drafts, for reading prompts in instalments. When it is
empty nothing is drafted, so whatever a drafter does, 1 % is about all that it can cost in the long run. No torch and no
clock of its own.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

from ..scheduler.cost_model import CPU_SECONDS, CostModel
from .step_cost import StepTimes

_NUM_LEVELS = 32  # p is rounded to this many steps, so that a choice for 64 requests looks at 32 kinds at most
_MEMORY = 0.93  # what one more draft leaves of the older ones' weight
_MEAN_MEMORY = 0.99  # the same for the mean over all requests
_PRIOR_WEIGHT = 1.0  # tried tokens that the mean over all requests counts for in each one
_FIRST_GUESS = 0.6  # p before anything has been drafted: worth a try
_LEAST_GAIN = 1.08  # of the rate; less is not worth the risk
# The same for drafters that take time for each round, a model: where 1.2 was predicted for prompts of 300 tokens and
# outputs of 160, 0.9 was measured, reading the prompts included.
_LEAST_GAIN_OF_ROUNDS = 1.3
_MAX_WAIT = 128  # steps between two probes of a request whose drafts fail
_MAX_WAIT_IF_RICH = 8  # the same while the account holds more than half of what it can
_SHARE_AT_RISK = 0.005  # of the time of plain decoding
_FIRST_CREDIT, _MOST_CREDIT = 4.0, 32.0  # in plain steps
_MOST_DEBT_S = 2.0
_REMAINING = 0.25  # of the tokens that an output may still have, those counted on to repay what reading it costs
_WRITE_OFF = 0.01  # of the time of plain decoding, or half of what was saved: so much of the reading is paid at a time
_SEARCH_EVERY = 4  # steps; a search takes 20 to 100 us
_MOST_IDLE = 8  # steps until the next look at the requests, where nothing was worth drafting
_CHECK_EVERY = 32  # steps of which one goes without drafts, to see what that takes

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
    least_rate = best_rate * (_LEAST_GAIN_OF_ROUNDS if costs.round else _LEAST_GAIN)
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
        self.step_times = StepTimes(prior)
        # Seconds of the drafter: per call, per token read or drafted, per round. Almost nothing until measured.
        self.draft_cost = CostModel((1e-5, 1e-6, 1e-6))
        self._records: dict[Key, _Record] = {}
        self._mean = _Record(_FIRST_GUESS * _PRIOR_WEIGHT, _PRIOR_WEIGHT)
        self._credit_s: float | None = None
        self._unpaid_s = 0.0  # spent on reading, and not yet taken from the account
        self._num_steps = 0
        self._next_look = self._num_rested = self._next_search = 0
        self._found: tuple[dict[int, int], float] = ({}, 0.0)

    @property
    def acceptance(self) -> float:
        """The probability that a drafted token is accepted, given that those before it are; lately, of all requests."""
        return self._mean.accepted / self._mean.tried

    def rests(self) -> bool:
        """Whether nothing need be chosen or booked for the next step, which then has no drafts: most steps, where
        nothing is worth drafting. Choosing and booking take 40 us, 3 % of a step of a small model.
        """
        if self._num_steps + 1 >= self._next_look:
            return False
        self._num_steps += 1
        self._num_rested += 1
        return True

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
        if self._num_steps % _CHECK_EVERY == 0 or not self.step_times.is_known(len(requests)):
            return {}
        plain = self.step_times.plain(len(requests), context)
        if self._credit_s is None:
            self._credit_s = _FIRST_CREDIT * plain
        if self._credit_s <= 0:
            num_steps = int(-self._credit_s / (_SHARE_AT_RISK * plain))  # until it is paid back
            self._next_look = self._num_steps + min(max(num_steps, _MOST_IDLE), _MAX_WAIT)
            return {}
        any_at_all, token = self.step_times.extra(len(requests), plain)
        costs = Costs(
            plain=plain,
            token=token + self.draft_cost.b,
            round=self.draft_cost.c * (self._max_length > 1),
            start=any_at_all + self.draft_cost.a,
        )
        mean = self.acceptance
        levels = {request: self._record(request).level(mean) for request in requests}
        counts: dict[int, int] = {}
        for level in levels.values():
            counts[level] = counts.get(level, 0) + 1
        if self._num_steps >= self._next_search:
            self._found = best_lengths(counts, num_decodes=len(requests), costs=costs, max_length=self._max_length)
            self._next_search = self._num_steps + _SEARCH_EVERY
        best, rate = self._found
        chosen = {request: length for request, level in levels.items() if (length := best.get(level, 0))}
        unread = unread or {}
        # What a token less to decode is worth, times how many fewer a request will have.
        worth = (rate * plain / len(requests) - 1) * _REMAINING * plain / len(requests)
        for request, (num_unread, num_left) in unread.items():
            if num_unread * self.draft_cost.b > worth * num_left or self._unpaid_s > _MOST_CREDIT * plain:
                chosen.pop(request, None)
        idle = [request for request in requests if request not in chosen and request not in unread]
        chosen |= self._probes(idle, costs)
        if not chosen:
            latest = self._num_steps + _MOST_IDLE
            soonest = min((self._records[request].next_probe for request in idle), default=latest)
            self._next_look = max(self._num_steps + 1, min(soonest, latest))
        return chosen

    def _probes(self, requests: Sequence[Key], costs: Costs) -> dict[Key, int]:
        """One token each for requests whose time has come, as far as the account reaches."""
        assert self._credit_s is not None
        probes = {}
        left = self._credit_s - costs.start - costs.round
        # Where calling the drafter is what costs, all are probed at once.
        has_dear_rounds = costs.round > costs.token * len(requests)
        is_due = any(self._records[request].next_probe <= self._num_steps for request in requests)
        for request in requests:
            if not is_due or left <= costs.token:
                break
            if has_dear_rounds or self._records[request].next_probe <= self._num_steps:
                probes[request] = 1
                left -= costs.token
        return probes

    def settle(
        self,
        drafted: Mapping[Key, Drafted],
        *,
        num_decodes: int,
        context: int,
        seconds: float | None,
        draft_s: float,
        read_s: float = 0.0,
    ) -> None:
        """Book a step in which so many requests decoded: what became of its drafts and how long it took.

        seconds: the step's without its drafter's, None if it did not only decode. draft_s: the drafter's, of which
        read_s went into reading what will be of use for longer.
        """
        if not num_decodes:
            return
        plain = self.step_times.plain(num_decodes, context)
        any_at_all, token = self.step_times.extra(num_decodes, plain)
        num_tokens = sum(num_drafted for num_drafted, _ in drafted.values())
        saved = 0.0
        is_rich = self._credit_s is not None and self._credit_s > _MOST_CREDIT / 2 * plain
        for request, (num_drafted, num_accepted) in drafted.items():
            if num_drafted:
                self._book(request, num_drafted, num_accepted, max_wait=_MAX_WAIT_IF_RICH if is_rich else _MAX_WAIT)
                saved += num_accepted * plain / num_decodes
        if num_tokens:
            # What the step took, if that can be told and nothing else came between.
            saved -= (
                any_at_all + token * num_tokens
                if seconds is None
                else self.step_times.more(num_decodes, num_tokens, plain, seconds)
            )
        if seconds is not None:
            self.step_times.observe(num_decodes, num_tokens, context, seconds)
        credit = _FIRST_CREDIT * plain if self._credit_s is None else self._credit_s
        self._unpaid_s += read_s
        paid = min(self._unpaid_s, max(_WRITE_OFF * plain, saved / 2))
        self._unpaid_s -= paid
        credit += _SHARE_AT_RISK * plain * (1 + self._num_rested) + saved - (draft_s - read_s) - paid
        self._num_rested = 0
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
