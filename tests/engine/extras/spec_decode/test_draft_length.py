"""DraftLengths: the best lengths against a search through all lengths, and the bound on the cost of drafting."""

import itertools
import operator
import random
from collections.abc import Iterator

import pytest

from splitfuse.engine.core.ports import Drafted
from splitfuse.engine.extras.spec_decode.draft_length import Costs, DraftLengths, best_lengths

PLAIN, TOKEN = 10e-3, 0.5e-3  # seconds of a step, and of one more token in it


def expected(p: float, length: int) -> float:
    return sum(p**j for j in range(1, length + 1))


@pytest.mark.parametrize("seed", range(40))
def test_no_other_lengths_bring_more_tokens_per_second(seed: int) -> None:
    rng = random.Random(seed)
    counts = {rng.randrange(33): rng.randint(1, 20) for _ in range(rng.randint(1, 3))}
    num_decodes = sum(counts.values()) + rng.choice([0, 0, 30])
    costs = Costs(
        plain=rng.uniform(1e-3, 50e-3),
        token=rng.uniform(1e-5, 3e-3),
        round=rng.choice([0.0, rng.uniform(1e-5, 5e-3)]),
        start=rng.uniform(0, 1e-3),
    )
    best, rate = best_lengths(counts, num_decodes=num_decodes, costs=costs, max_length=4)

    def rate_of(lengths: tuple[int, ...]) -> float:
        levels = zip(counts.items(), lengths, strict=True)
        num_tokens = num_decodes + sum(n * expected(level / 32, length) for (level, n), length in levels)
        num_drafted = sum(n * length for n, length in zip(counts.values(), lengths, strict=True))
        rounds = max(lengths)
        return num_tokens / (
            costs.plain + (costs.start if rounds else 0) + costs.round * rounds + costs.token * num_drafted
        )

    highest = max(map(rate_of, itertools.product(range(5), repeat=len(counts))))
    assert rate == pytest.approx(rate_of(tuple(best.get(level, 0) for level in counts)), rel=0.02)
    least_gain = 1.3 if costs.round else 1.08
    assert rate >= min(highest, highest / least_gain) * 0.999, "a small gain is not worth the risk"


def teach(lengths: DraftLengths[str]) -> None:
    """Teach the times of steps with two rows, without and with drafts."""
    for num_drafted in (0,) * 20 + (1, 2, 6, 12):
        lengths.step_times.observe(2, num_drafted, 0, PLAIN + TOKEN * (2 + num_drafted))


class Bench:
    """Simulated engine: a drafted token is right with the probability `acceptance`."""

    def __init__(
        self,
        *,
        acceptance: float,
        num_decodes: int = 1,
        token_s: float = TOKEN,
        drafter_s: float = 0.0,
        max_length: int = 6,
        seed: int = 0,
    ) -> None:
        self.lengths: DraftLengths[int] = DraftLengths(max_length)
        self.acceptance = acceptance
        self.seconds = self.num_tokens = 0.0
        self._requests = list(range(num_decodes))
        self._token_s, self._drafter_s = token_s, drafter_s
        self._rng = random.Random(seed)

    def _pass_s(self, num_tokens: int) -> float:
        return PLAIN + self._token_s * num_tokens

    def steps(self, count: int) -> Iterator[dict[int, int]]:
        for _ in range(count):
            chosen = self.lengths.choose(self._requests, context=0)
            drafted = {request: Drafted(length, self._num_accepted(length)) for request, length in chosen.items()}
            num_drafted = sum(chosen.values())
            draft_s = self._drafter_s if chosen else 0.0
            self.num_tokens += len(self._requests) + sum(outcome.num_accepted for outcome in drafted.values())
            if chosen:
                self.lengths.draft_cost.observe(num_drafted, max(chosen.values()), max(draft_s, 1e-6))
            seconds = self._pass_s(len(self._requests) + num_drafted)
            self.seconds += seconds + draft_s
            self.lengths.observe(drafted, num_decodes=len(self._requests), context=0, seconds=seconds, draft_s=draft_s)
            yield chosen

    def _num_accepted(self, length: int) -> int:
        return next((i for i in range(length) if self._rng.random() >= self.acceptance), length)

    def speedup(self) -> float:
        return self.num_tokens / self.seconds * self._pass_s(len(self._requests)) / len(self._requests)


@pytest.mark.slow
@pytest.mark.parametrize("num_decodes", [1, 4, 16, 64])
@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("token_s", [0.01e-3, 0.5e-3, 10e-3])
def test_never_slower_than_plain_decoding(num_decodes: int, acceptance: float, token_s: float) -> None:
    bench = Bench(acceptance=acceptance, num_decodes=num_decodes, token_s=token_s)
    for _ in bench.steps(600):
        pass
    assert bench.speedup() >= 0.98


def test_what_is_always_right_is_drafted_at_full_length() -> None:
    bench = Bench(acceptance=1.0)
    *_, last = bench.steps(100)
    assert last == {0: 6}
    assert bench.speedup() > 3.5


def test_a_draft_whose_outcome_changes_the_acceptance_is_followed_by_another() -> None:
    bench = Bench(acceptance=0.7)
    chosen = list(bench.steps(1000))[100:]
    assert sum(map(bool, chosen)) > 0.9 * len(chosen)


def test_what_is_always_wrong_is_only_probed() -> None:
    bench = Bench(acceptance=0.0)
    chosen = list(bench.steps(2000))
    assert 1 <= sum(map(bool, chosen[-1000:])) <= 1000 * 0.005 * PLAIN / TOKEN + 10, "half a percent of the time"
    assert max(sum(lengths.values()) for lengths in chosen[20:]) == 1
    bench.acceptance = 1.0
    assert any(lengths == {0: 6} for lengths in bench.steps(400)), "a probe that is right brings it back"


def test_nothing_is_drafted_where_a_token_more_costs_a_step() -> None:
    """Simulate a CPU at a high load, where arithmetic bounds the pass."""
    bench = Bench(acceptance=0.7, num_decodes=64, token_s=PLAIN)
    assert not any(sum(lengths.values()) > 64 for lengths in list(bench.steps(300))[50:])


@pytest.mark.parametrize("token_share", [0.02, 0.15, 0.3, 0.8, 3.0])
def test_a_drafter_that_ends_drafts_itself_is_told_where(token_share: float) -> None:
    """Drafts of eight tokens, each with a probability the drafter knows; no fixed threshold brings much more."""

    def rate(threshold: float | None) -> float:
        rng, lengths = random.Random(1), DraftLengths[int](8, ends_drafts=True)
        seconds = num_tokens = 0.0
        for _ in range(3000):
            least, count = threshold or 0.0, 8
            if threshold is None:
                count = lengths.choose([0], context=0).get(0, 0)
                least = lengths.least_probability
            chances = [rng.choice((0.98, 0.9, 0.5)) for _ in range(8)]
            num_drafted = sum(p >= least for p in itertools.accumulate(chances[:count], operator.mul))
            is_right = [rng.random() < p for p in chances]
            num_accepted = next((at for at in range(num_drafted) if not is_right[at]), num_drafted)
            step_s = PLAIN * (1 + token_share * num_drafted)
            seconds, num_tokens = seconds + step_s, num_tokens + 1 + num_accepted
            if threshold is None:
                drafted = {0: Drafted(num_drafted, num_accepted)} if num_drafted else {}
                lengths.observe(drafted, num_decodes=1, context=0, seconds=step_s, draft_s=1e-5)
        return num_tokens / seconds

    assert rate(None) >= 0.96 * max(rate(threshold / 20) for threshold in range(1, 21))


def test_a_slow_drafter_is_not_called_until_the_budget_is_refilled() -> None:
    bench = Bench(acceptance=1.0, drafter_s=1.0)
    used = [bool(lengths) for lengths in bench.steps(3000)]
    assert 1 <= sum(used) <= 3000 * PLAIN * 0.01 + 2
    assert bench.speedup() > 0.9


def test_each_request_has_its_own_length() -> None:
    lengths: DraftLengths[str] = DraftLengths(6)
    teach(lengths)
    seen = []
    for _ in range(60):
        chosen = lengths.choose(["right", "wrong"], context=0)
        seen.append(chosen)
        drafted = {name: Drafted(count, count if name == "right" else 0) for name, count in chosen.items()}
        lengths.observe(drafted, num_decodes=2, context=0, seconds=None, draft_s=1e-5)
    assert sum(chosen.get("right", 0) for chosen in seen[20:]) >= 6 * 38, "but for a step now and then without drafts"
    assert sum(chosen.get("wrong", 0) for chosen in seen[20:]) <= 40 / 8 + 1, "one token each time, to see"
    lengths.forget("right")
    lengths.forget("unknown")
    assert set(lengths._acceptance._records) == {"wrong"}


def test_a_prompt_is_not_read_for_a_short_rest_of_output() -> None:
    """Read a long prompt into a draft model only if that pays off within the output."""
    lengths: DraftLengths[str] = DraftLengths(4)
    teach(lengths)
    for num_drafted, rounds in ((4, 4), (300, 4), (100, 1), (8, 4)) * 10:
        lengths.draft_cost.observe(num_drafted, rounds, 1e-4 * num_drafted + 1e-4 * rounds)
    for _ in range(10):
        lengths.observe({"known": Drafted(4, 4)}, num_decodes=2, context=0, seconds=None, draft_s=1e-4)
    unread = {"long output": (500, 400), "short output": (500, 5)}
    chosen = lengths.choose(["long output", "short output"], context=0, unread=unread)
    assert "short output" not in chosen
    assert chosen["long output"] > 0


def test_a_clock_that_stands_still_or_goes_back_teaches_nothing() -> None:
    lengths: DraftLengths[str] = DraftLengths(4)
    for seconds in (0.0, -1.0, 0.0, 1e-9) * 20:
        chosen = lengths.choose(["a", "b"], context=0)
        drafted = {request: Drafted(count, count) for request, count in chosen.items()}
        lengths.observe(drafted, num_decodes=2, context=0, seconds=seconds, draft_s=0.0)
    assert lengths.step_times.plain(2, 0) > 0
