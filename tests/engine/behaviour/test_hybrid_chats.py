"""Prefix hits of models with recurrent layers: chats, branches, further outputs, and the limits of their memory."""

import random

import pytest
from hybrid_engine import HybridEngine

NUM_START, NUM_TURNS, NUM_USER, NUM_ANSWER = 3000, 5, 80, 150
VOCAB = 1000
MOST_RECOMPUTED = 256  # the grid within a long prompt


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(count)]


def chat(engine: HybridEngine, rng: random.Random) -> tuple[list[int], list[int]]:
    """Run a chat; return its tokens and the ends of its messages. Each turn finds what it shares with the last one."""
    text, ends = tokens(rng, NUM_START), [NUM_START]
    num_shared = 0
    for turn in range(NUM_TURNS):
        request = engine.answer(text, NUM_ANSWER)
        if turn:
            assert request.num_cached_tokens >= 0.95 * num_shared, f"turn {turn}"
        text = list(request.token_ids)
        num_shared = len(text)
        ends.append(num_shared)
        text += tokens(rng, NUM_USER)
        ends.append(len(text))
    return text, ends


def test_a_branch_at_any_message_computes_few_tokens_again() -> None:
    rng = random.Random(2)
    engine = HybridEngine()
    text, ends = chat(engine, rng)
    for end in [*ends[:-1], *(rng.randrange(300, NUM_START) for _ in range(20))]:
        request = engine.answer(text[:end] + tokens(rng, 30), 3)
        assert end - request.num_cached_tokens <= MOST_RECOMPUTED, f"a branch after {end} tokens"


def test_a_second_branch_at_one_place_begins_there() -> None:
    """Where a request has left a cached prompt, others will: the first one leaves a checkpoint."""
    rng = random.Random(3)
    engine = HybridEngine()
    text = tokens(rng, 1000)
    engine.answer(text, 10)
    first, second = (engine.answer(text[:500] + tokens(rng, 40), 3) for _ in range(2))
    assert first.num_cached_tokens == 256
    assert second.num_cached_tokens == 500 // 16 * 16


@pytest.mark.parametrize("caching", [True, False])
def test_further_outputs_of_a_prompt_begin_at_its_last_token(caching: bool) -> None:
    engine = HybridEngine(enable_prefix_caching=caching)
    requests = engine.request(tokens(random.Random(4), 203), 20, n=4)
    engine.run()
    assert [request.num_cached_tokens for request in requests] == [0, 202, 202, 202]
    assert engine.states.slots.num_used == len({c.slot for c in engine.states.slots.checkpoints})
    assert not any(hasattr(checkpoint.key, "parent") for checkpoint in engine.states.slots.checkpoints)


@pytest.mark.parametrize("seed", range(4))
def test_random_traffic_stays_within_its_slots(seed: int) -> None:
    """Checkpoints fill their memory, not more, and no tenant loses all of its own to another's flood."""
    rng = random.Random(seed)
    engine = HybridEngine(num_blocks=600, num_checkpoints=rng.choice([3, 12, 40]), block_size=rng.choice([4, 16]))
    starts = [tokens(rng, rng.randint(20, 400)) for _ in range(12)]
    for _ in range(20):
        for _ in range(rng.randint(1, 12)):
            prompt = rng.choice(starts)[: rng.randint(1, 400)] + tokens(rng, rng.randint(1, 200))
            engine.request(prompt, rng.randint(1, 30), tenant=rng.choice("abc"), n=rng.choice([1, 1, 1, 3]))
        engine.run()
        kept = {checkpoint.slot for checkpoint in engine.states.slots.checkpoints}
        assert engine.states.slots.num_used == len(kept) <= engine.spec.num_slots
    assert engine.states.slots.checkpoints.num_evictions > 0
    assert engine.blocks.num_prefix_hits > 0


def test_a_flood_of_one_tenant_leaves_the_chats_of_another() -> None:
    rng = random.Random(5)
    engine = HybridEngine(num_live=32, num_checkpoints=32)
    text = tokens(rng, 500)
    engine.answer(text, 20, tenant="regular")
    for _ in range(200):
        engine.answer(tokens(rng, 60), 2, tenant="flood")
    assert engine.states.slots.checkpoints.num_evictions > 100
    assert engine.answer(text, 2, tenant="regular").num_cached_tokens == 496


def test_states_within_a_prompt_are_evicted_before_the_end_of_a_shorter_chat() -> None:
    rng = random.Random(7)
    engine = HybridEngine()
    engine.answer(tokens(rng, 150), 20)
    checkpoints = engine.states.slots.checkpoints
    ends = [checkpoint for checkpoint in checkpoints if checkpoint.gain > 150]
    engine.answer(tokens(rng, 3000), 2)
    evicted = []
    while (checkpoint := checkpoints.next_evicted(lambda _: True)) not in ends:
        assert checkpoint is not None
        evicted.append(checkpoints.pop(checkpoint.key))
    assert len(evicted) > 3000 // 256, "all that the long prompt has left within"


def test_a_state_of_a_failed_request_is_not_found() -> None:
    """Nor behind a block of another request with equal tokens."""
    rng = random.Random(6)
    engine = HybridEngine()
    prompt = tokens(rng, 100)
    good, bad = engine.request(prompt, 3)[0], engine.request(prompt, 3)[0]
    engine.model.faults.not_finite.add(bad)
    engine.run()
    assert (good.finish_reason, bad.finish_reason) == ("length", "error")
    assert engine.answer(prompt, 2).num_cached_tokens in (0, 96)
