"""DraftLengths: the number of tokens to draft for each request, 0 if plain decoding is better.

Three parts decide: the AcceptanceTracker measures how often drafts are right, best_lengths finds the lengths that bring
the most tokens per second, and the OverheadBudget bounds the cost of wrong estimates. StepTimes learns the times of
steps that only decode: there one more token costs far less than in a prompt's chunk, whose pass is bound by arithmetic.
A drafter with a Confidence is told the least probability of a token that is worth its cost instead of lengths. No torch
and no clock of its own.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

from ...core.cost_model import CPU_SECONDS, CostModel
from ...core.ports import Drafted
from .step_cost import StepTimes

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


_REFILL = 0.005  # share of the time of plain decoding
_INITIAL_STEPS, _MAX_STEPS = 4.0, 32.0  # first and largest contents, in plain steps
_MAX_OVERDRAFT_S = 2.0
_READING_SHARE = 0.01  # reading charged per update: this share of plain decoding, or half of the saved time if more


class OverheadBudget:
    """Token bucket in seconds, which bounds the cost of speculation in the long run. One per engine.

    The bucket gains 0.5 % of the time of plain decoding and every second that accepted drafts saved. It loses every
    second spent on drafts; seconds of reading prompts are charged in parts. While the bucket is empty no tokens are
    drafted, so no drafter can cost more than about 1 %. `plain` is everywhere the seconds of a step without drafts.
    """

    def __init__(self) -> None:
        self._available_s: float | None = None
        self._deferred_s = 0.0  # seconds of reading that are not charged yet

    def available_s(self, plain: float) -> float:
        """Return the seconds that may be spent on drafts; 0 or less allows no drafts."""
        if self._available_s is None:
            self._available_s = _INITIAL_STEPS * plain
        return self._available_s

    def num_steps_to_refill(self, plain: float) -> int:
        """Return the number of steps without drafts until the budget is no longer overdrawn."""
        return int(-self.available_s(plain) / (_REFILL * plain))

    def is_half_full(self, plain: float) -> bool:
        """Return True if the budget holds more than half of its capacity."""
        return self.available_s(plain) > _MAX_STEPS / 2 * plain

    def allows_reading(self, plain: float) -> bool:
        """Return True if another prompt may be read, because little reading waits to be charged."""
        return self._deferred_s <= _MAX_STEPS * plain

    def update(self, plain: float, *, num_steps: int, saved_s: float, draft_s: float, read_s: float) -> None:
        """Account for `num_steps`, in which drafts saved `saved_s` and took `draft_s`, and reading took `read_s`."""
        self._deferred_s += read_s
        charged = min(self._deferred_s, max(_READING_SHARE * plain, saved_s / 2))
        self._deferred_s -= charged
        available = self.available_s(plain) + (_REFILL * plain * num_steps + saved_s - draft_s - charged)
        self._available_s = min(max(available, -_MAX_OVERDRAFT_S), _MAX_STEPS * plain)


_MIN_GAIN = 1.08  # least gain in the rate; less is not worth the risk
# Least gain for drafters that take time for each round (models): where 1.2 was predicted for prompts of 300 tokens and
# outputs of 160, 0.9 was measured, including reading the prompts.
_MIN_GAIN_OF_ROUNDS = 1.3


class Costs(NamedTuple):
    """Costs of one step in seconds."""

    plain: float  # a step without drafts
    token: float  # one more drafted token: drafting and verifying
    round: float  # one more round of the drafter, for any number of requests
    start: float  # calling the drafter at all


def best_lengths(
    counts: Mapping[int, int], *, num_decodes: int, costs: Costs, max_length: int
) -> tuple[dict[int, int], float]:
    """Return the best draft length for each level of acceptance, and the rate in tokens per second.

    A draft of j tokens with acceptance p brings p + p² + … + pʲ more tokens (Leviathan et al. 2023). Its cost is the
    longer pass and the drafter's time.

    counts: level → number of requests, among the num_decodes that decode. Adding every token that brings more than the
    rate itself maximises the rate (Dinkelbach 1967), so every level's length follows from one number.
    """
    best: dict[int, int] = {}
    best_rate = num_decodes / costs.plain
    min_rate = best_rate * (_MIN_GAIN_OF_ROUNDS if costs.round else _MIN_GAIN)
    for cap in range(1, max_length + 1) if costs.round else (max_length,):
        rate = num_decodes / costs.plain
        for _ in range(4):
            lengths = {level: draft_length(level, rate * costs.token, cap) for level in counts}
            num_tokens = num_decodes + sum(n * _expected(level, lengths[level]) for level, n in counts.items())
            num_drafted = sum(n * lengths[level] for level, n in counts.items())
            seconds = costs.plain + costs.start + costs.round * cap + costs.token * num_drafted
            if num_tokens / seconds <= rate * 1.0001:
                break
            rate = num_tokens / seconds
            if rate > max(best_rate, min_rate):
                best, best_rate = lengths, rate
    return best, best_rate


def draft_length(level: int, min_probability: float, max_length: int) -> int:
    """Return the length of the longest draft whose last token is accepted with at least this probability."""
    p, reached, length = level / NUM_LEVELS, 1.0, 0
    while length < max_length and (reached := reached * p) >= min_probability:
        length += 1
    return length


@lru_cache(maxsize=4096)
def _expected(level: int, length: int) -> float:
    """Return the expected number of accepted tokens of a draft of this length."""
    p = level / NUM_LEVELS
    return float(length) if p == 1 else p * (1 - p**length) / (1 - p)


_MAX_WAIT = 128  # steps between two probes of a request whose drafts fail
_MAX_WAIT_IF_HALF_FULL = 8  # like _MAX_WAIT, while more than half of the budget is left
_REMAINING = 0.25  # share of an output's possible further tokens that is counted on to repay the cost of reading
_SEARCH_EVERY = 4  # steps; a search takes 20 to 100 us
_MAX_IDLE = 8  # steps until requests are considered again, after no draft was worth its cost
_RATE_DECAY = 0.97  # weight of older steps in the rate that a drafted token must not lower
_MAX_LEAST = 0.9  # likelier tokens are drafted whatever they seem to cost, so that a wrong estimate is corrected
_CHECK_EVERY = 32  # one step in 32 has no drafts, to measure its time


class DraftLengths(Generic[Key]):
    """Chooser of draft lengths, one per engine. Requests are any keys."""

    def __init__(
        self, max_length: int, *, prior: tuple[float, float, float] = CPU_SECONDS, ends_drafts: bool = False
    ) -> None:
        """Create a chooser. `prior`: coefficients of a step's cost model until steps have been seen.

        `ends_drafts`: the drafter itself ends drafts at `least_probability`, so lengths are upper limits.
        """
        self._max_length, self._ends_drafts = max_length, ends_drafts
        self.least_probability = 0.0  # least one of a drafted token that is worth its cost
        self._num_tokens = self._num_plain = 1.0  # tokens of a row, and the time in plain steps; older ones count less
        self.step_times = StepTimes(prior)
        # Seconds of the drafter: per call, per token read or drafted, per round. Near 0 until measured.
        self.draft_cost = CostModel((1e-5, 1e-6, 1e-6))
        self._acceptance: AcceptanceTracker[Key] = AcceptanceTracker()
        self._budget = OverheadBudget()
        self._num_steps = self._num_skipped = self._next_choice = self._next_search = 0
        self._found: tuple[dict[int, int], float] = ({}, 0.0)

    def skips_step(self) -> bool:
        """Return True if the next step has no drafts and needs neither `choose` nor `observe`.

        These are most steps if no draft is worth its cost. The two calls take 40 us, 3 % of a step of a small model.
        """
        if self._num_steps + 1 >= self._next_choice:
            return False
        self._num_steps += 1
        self._num_skipped += 1
        return True

    def choose(
        self, requests: Sequence[Key], *, context: int, unread: Mapping[Key, tuple[int, int]] | None = None
    ) -> dict[Key, int]:
        """Return the tokens to draft for the requests that decode in the next step, without requests that get none.

        context: tokens that all the requests together have in the cache. unread: for requests that must be read before
        the first draft, the tokens to read and the tokens that their output may still have.
        """
        if not requests:
            return {}
        self._num_steps += 1
        if self._num_steps % _CHECK_EVERY == 0 or not self.step_times.is_known(len(requests)):
            return {}
        plain = self.step_times.plain(len(requests), context)
        if self._budget.available_s(plain) <= 0:
            num_steps = self._budget.num_steps_to_refill(plain)
            self._next_choice = self._num_steps + min(max(num_steps, _MAX_IDLE), _MAX_WAIT)
            return {}
        costs = self._costs(len(requests), plain)
        if self._ends_drafts:
            rate = self._num_tokens / self._num_plain * len(requests) / plain
            self.least_probability = min(rate * costs.token, _MAX_LEAST)
            return dict.fromkeys(requests, self._max_length)
        unread = unread or {}
        chosen = self._worth_drafting(requests, costs, unread)
        idle = [request for request in requests if request not in chosen and request not in unread]
        chosen |= self._probes(idle, costs)
        if not chosen:
            latest = self._num_steps + _MAX_IDLE
            soonest = min(map(self._acceptance.next_probe, idle), default=latest)
            self._next_choice = max(self._num_steps + 1, min(soonest, latest))
        return chosen

    def _costs(self, num_decodes: int, plain: float) -> Costs:
        any_at_all, token = self.step_times.extra(num_decodes, plain)
        return Costs(
            plain=plain,
            token=token + self.draft_cost.b,
            round=self.draft_cost.c * (self._max_length > 1),
            start=any_at_all + self.draft_cost.a,
        )

    def _worth_drafting(
        self, requests: Sequence[Key], costs: Costs, unread: Mapping[Key, tuple[int, int]]
    ) -> dict[Key, int]:
        """Return the lengths that the search found, without requests whose reading would not pay off."""
        levels = self._acceptance.levels(requests)
        if self._num_steps >= self._next_search:
            counts = Counter(levels.values())
            self._found = best_lengths(counts, num_decodes=len(requests), costs=costs, max_length=self._max_length)
            self._next_search = self._num_steps + _SEARCH_EVERY
        found, rate = self._found
        most = max(found.values(), default=0)
        best = {  # a draft's outcome moves its request to a level that the last search did not see
            level: found[level] if level in found else draft_length(level, rate * costs.token, most)
            for level in set(levels.values())
        }
        # Value of one token less to decode, times the expected share of such tokens.
        worth = (rate * costs.plain / len(requests) - 1) * _REMAINING * costs.plain / len(requests)
        allows_reading = self._budget.allows_reading(costs.plain)
        too_costly = {
            request
            for request, (num_unread, num_left) in unread.items()
            if num_unread * self.draft_cost.b > worth * num_left or not allows_reading
        }
        return {
            request: length
            for request, level in levels.items()
            if (length := best[level]) and request not in too_costly
        }

    def _probes(self, requests: Sequence[Key], costs: Costs) -> dict[Key, int]:
        """Return one token each for requests that are due for a probe, as far as the budget reaches."""
        due = [request for request in requests if self._acceptance.next_probe(request) <= self._num_steps]
        # If calling the drafter is the main cost, all requests are probed at once.
        probed = requests if due and costs.round > costs.token * len(requests) else due
        seconds_left = self._budget.available_s(costs.plain) - costs.start - costs.round
        probes = {}
        for request in probed:
            if seconds_left <= costs.token:
                break
            probes[request] = 1
            seconds_left -= costs.token
        return probes

    def observe(
        self,
        drafted: Mapping[Key, Drafted],
        *,
        num_decodes: int,
        context: int,
        seconds: float | None,
        draft_s: float,
        read_s: float = 0.0,
    ) -> None:
        """Learn from a step in which `num_decodes` requests decoded: the fate of its drafts, and its time.

        seconds: the step's time without the drafter's, None if the step did not only decode. draft_s: the drafter's
        time, including read_s for reading, which later drafts use, too.
        """
        if not num_decodes:
            return
        plain = self.step_times.plain(num_decodes, context)
        max_wait = _MAX_WAIT_IF_HALF_FULL if self._budget.is_half_full(plain) else _MAX_WAIT
        num_tokens, saved = 0, 0.0
        for request, outcome in drafted.items():
            if outcome.num_drafted:
                self._acceptance.observe(request, outcome, step=self._num_steps, max_wait=max_wait)
                num_tokens += outcome.num_drafted
                saved += outcome.num_accepted * plain / num_decodes
        added = self.step_times.added(num_decodes, num_tokens, plain, seconds) if num_tokens else 0.0
        num_accepted = sum(outcome.num_accepted for outcome in drafted.values())
        self._num_tokens = _RATE_DECAY * self._num_tokens + 1 + num_accepted / num_decodes
        self._num_plain = _RATE_DECAY * self._num_plain + 1 + (added + draft_s) / plain
        saved -= added
        if seconds is not None:
            self.step_times.observe(num_decodes, num_tokens, context, seconds)
        num_steps, self._num_skipped = 1 + self._num_skipped, 0
        self._budget.update(plain, num_steps=num_steps, saved_s=saved, draft_s=draft_s - read_s, read_s=read_s)

    def forget(self, request: Key) -> None:
        """Drop a request that has ended."""
        self._acceptance.forget(request)
