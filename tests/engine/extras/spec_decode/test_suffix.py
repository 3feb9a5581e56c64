"""Suffix drafts: from the past of the same tenant alone, in bounded memory."""

import random

import pytest
import scheduler_bench

from splitfuse.engine.core.request import Request
from splitfuse.engine.extras.spec_decode.suffix import SuffixDrafter

STORY = list(range(100, 160))


def drafter(**changes: float) -> SuffixDrafter:
    settings = {"max_cached_tokens": 10_000, "max_spec_factor": 2.0, "min_token_prob": 0.1}
    return SuffixDrafter(max_tree_depth=64, **{**settings, **changes})  # type: ignore[arg-type]


def request(prompt: list[int], output: list[int], *, tenant: str = "", salt: str = "") -> Request:
    made = scheduler_bench.request(0, tokens=prompt, tenant=tenant, cache_salt=salt)
    made.token_ids += output
    return made


def learn(drafter: SuffixDrafter, past: Request) -> None:
    """Let the drafter see the end of a request, and read its text."""
    drafter.forget(past)
    for _ in range(1000):
        drafter.draft({})
    drafter.check()


def drafted(drafter: SuffixDrafter, now: Request, count: int = 8) -> list[int]:
    return drafter.draft({now: count}).get(now, [])


def test_the_past_is_drafted() -> None:
    suffix = drafter()
    learn(suffix, request(STORY[:10], STORY[10:]))
    assert drafted(suffix, request([5, 6], STORY[20:30])) == STORY[30:38]
    assert drafted(suffix, request([5, 6], STORY[20:22])) == STORY[22:26]  # twice as long as the match
    assert drafted(suffix, request([5, 6], [STORY[20]])) == []  # a match of one token is none
    assert drafted(suffix, request([5, 6], STORY[-10:])) == []


def test_a_draft_goes_on_beyond_the_depth_of_the_tree() -> None:
    suffix = SuffixDrafter(max_tree_depth=16, max_cached_tokens=10_000, max_spec_factor=8.0, min_token_prob=0.1)
    learn(suffix, request(STORY[:1], STORY[1:]))
    assert drafted(suffix, request([5], STORY[:8]), 40) == STORY[8:48]


def test_the_source_drafts_that_was_right_before() -> None:
    suffix = drafter()
    learn(suffix, request([1, 2, 3, 4, 5], [70, 71, 72]))
    now = request([4, 5, 60, 61, 62], [4, 5])
    assert drafted(suffix, now, 2) == [60, 61]  # the own text, while nothing is known
    now.token_ids += [70, 71, 4, 5]
    assert drafted(suffix, now, 2) == [70, 71]
    assert drafted(suffix, request([4, 5, 60, 61, 62], [4, 5]), 2) == [70, 71]


def test_a_draft_ends_where_a_token_is_not_worth_its_cost() -> None:
    """After three tokens, of which two follow for sure, the third one is another each time."""
    suffix = drafter(min_token_prob=0.0)
    rng = random.Random(2)
    for _ in range(30):
        now = request([*STORY[:4]], [*STORY[4:7], rng.randrange(200, 300), *STORY[10:16]])
        text, now.token_ids = now.token_ids, now.token_ids[:5]
        suffix.confidence.least = 0.5
        while len(now.token_ids) < len(text):
            last, at = drafted(suffix, now), len(now.token_ids)
            if at == 5:
                first = last
            now.token_ids.append(text[at])
        learn(suffix, now)
    assert first == STORY[5:7]


@pytest.mark.parametrize(
    ("one", "other"),
    [({"tenant": "a"}, {"tenant": "b"}), ({"tenant": "a"}, {}), ({"salt": "a"}, {"salt": "b"}), ({"salt": "a"}, {})],
    ids=str,
)
def test_nobody_learns_from_another(one: dict[str, str], other: dict[str, str]) -> None:
    suffix = drafter()
    learn(suffix, request(STORY[:10], STORY[10:], **one))
    for now, then in ((one, STORY[30:38]), (other, [])):
        assert drafted(suffix, request([5, 6], STORY[20:30], **now)) == then


@pytest.mark.parametrize("seed", range(5))
def test_memory_is_bounded_whatever_ends(seed: int) -> None:
    rng, most = random.Random(seed), 2000
    suffix = drafter(max_cached_tokens=most)
    texts = [[rng.randrange(rng.choice((5, 500))) for _ in range(300)] for _ in range(6)]
    for _ in range(120):
        start, tenant = rng.randrange(200), rng.choice("abbbcc")
        past = request(rng.choice(texts)[start:], rng.choice(texts)[: rng.randrange(1, 80)], tenant=tenant)
        past.num_cached_tokens = rng.choice((0, 16))
        for _ in range(rng.randrange(12)):
            suffix.draft({past: 4})
        suffix.forget(past)
        suffix.check()
    for _ in range(2000):
        suffix.draft({})
    suffix.check()
    assert suffix.num_tokens == most


def test_a_flood_leaves_other_tenants_their_past() -> None:
    suffix = drafter(max_cached_tokens=1000)
    learn(suffix, request(STORY[:10], STORY[10:], tenant="quiet"))
    rng = random.Random(1)
    for _ in range(20):
        learn(suffix, request([rng.randrange(1000) for _ in range(200)], [7], tenant="flood"))
    assert drafted(suffix, request([5, 6], STORY[20:30], tenant="quiet")) == STORY[30:38]


def test_cached_prompts_are_kept_once() -> None:
    suffix = drafter()
    conversation = list(range(1000))
    for end in range(400, 1000, 100):
        turn = request(conversation[:end], conversation[end : end + 100])
        turn.num_cached_tokens = 0 if end == 400 else end
        learn(suffix, turn)
    # Answers of 100 with 32 tokens before them; prompts without what was cached, but for the depth of the tree.
    assert suffix.num_tokens == 6 * 132 + 400 + 5 * 64
