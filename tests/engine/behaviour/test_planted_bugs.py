"""The simulated worlds catch every planted bug, so their checks keep such bugs out."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import draft_bugs
import memory_bugs
import pytest
import schedule_bugs
from planted_bug import Bug
from world import World

pytestmark = pytest.mark.sampled(6)

BUGS = {**memory_bugs.BUGS, **schedule_bugs.BUGS, **draft_bugs.BUGS}
MOST_SEEDS = 60
STEPS = 2000
# Seeds of worlds that catch rare bugs are tried first. If they no longer do, the other seeds follow.
FIRST_SEEDS = {
    "block_is_remembered_before_it_is_full": (9, 27),
    "decodes_wait_for_prompts": (7,),
    "drafts_take_promised_blocks": (18,),
    "found_tokens_are_not_compared": (6,),
    "no_request_joins_two": (7,),
    "service_is_not_charged": (13,),
    "shared_block_is_still_handed_out": (4,),
    "shared_blocks_count_as_freed": (7,),
    "swap_in_goes_to_the_wrong_block": (20,),
    "watermark_is_ignored": (18,),
    "weights_of_tenants_are_ignored": (28,),
}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="splitfuse.engine")  # failures are part of every world


def broken_rule(world: World) -> AssertionError | None:
    try:
        world.run(STEPS)
    except AssertionError as exc:
        return exc
    return None


def seeds_until_caught(bug: Bug, *, outputs_only: bool = False) -> tuple[int, str]:
    """Return the number of worlds until one broke a rule, and its message. Fails if none does."""
    for count, seed in enumerate((*FIRST_SEEDS.get(bug.make.__name__, ()), *range(MOST_SEEDS)), 1):
        world = World(seed, outputs_only=outputs_only)
        broken = broken_rule(world) if bug.where(world.settings) else None
        if broken is not None:
            assert isinstance(broken.__cause__, AssertionError), f"a blunder of the wrong code itself: {broken}"
            return count, str(broken)
    pytest.fail(f"{bug.owner.__name__}.{bug.name} is wrong and {MOST_SEEDS} worlds do not see it")


@pytest.fixture
def planted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bug]:
    """Bug of that name, in place of the right code. Fails if the bug was never called."""
    bug = BUGS[request.param]
    wrong = bug.make(getattr(bug.owner, bug.name))
    num_calls = 0

    def counted(*args: Any, **more: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        return wrong(*args, **more)

    monkeypatch.setattr(bug.owner, bug.name, counted)
    yield bug
    assert num_calls > 0


@pytest.mark.parametrize("planted", BUGS, indirect=True)
def test_it_is_caught(planted: Bug) -> None:
    num_seeds, message = seeds_until_caught(planted)
    print(f"{num_seeds} seeds; {message.splitlines()[0]}")


@pytest.mark.parametrize("planted", [name for name, bug in BUGS.items() if bug.shows_in_tokens], indirect=True)
def test_it_shows_as_a_wrong_token(planted: Bug) -> None:
    """Look at the outputs alone: the fake model reads the contents of the blocks."""
    num_seeds, message = seeds_until_caught(planted, outputs_only=True)
    print(f"{num_seeds} seeds; {message.splitlines()[0]}")
    assert "the oracle" in message


@pytest.mark.parametrize("planted", ["last_block_is_off_by_one"], indirect=True)
def test_it_says_how_to_see_it_again(planted: Bug) -> None:
    _, message = seeds_until_caught(planted)
    found = re.search(
        r"again: SPLITFUSE_TEST_SEEDS=(\d+)-\1 SPLITFUSE_TEST_STEPS=(\d+) python -m pytest (\S+)::", message
    )
    assert found is not None
    assert (Path(__file__).parents[3] / found[3]).exists()
    with pytest.raises(AssertionError, match=re.escape(message)):
        World(int(found[1])).run(int(found[2]))
