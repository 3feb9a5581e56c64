"""The simulated worlds catch every planted bug, so their checks keep such bugs out."""

import re
from pathlib import Path

import draft_bugs
import memory_bugs
import pytest
import schedule_bugs
from planted_bug import Bug, planted_by_name, run_until_caught
from world import World

pytestmark = [pytest.mark.sampled(6), pytest.mark.usefixtures("quiet")]

BUGS = {**memory_bugs.BUGS, **schedule_bugs.BUGS, **draft_bugs.BUGS}
MOST_SEEDS = 60
STEPS = 2000
# Seeds of worlds that catch rare bugs are tried first. If they no longer do, the other seeds follow.
FIRST_SEEDS = {
    "block_is_remembered_before_it_is_full": (9, 27), "decodes_wait_for_prompts": (7,),
    "drafts_take_promised_blocks": (18,), "found_tokens_are_not_compared": (6,), "hash_is_without_its_tenant": (2,),
    "last_token_is_found_too": (2,), "no_request_joins_two": (7,), "none_gives_way_to_another_tenant": (7,),
    "service_is_not_charged": (13,), "shared_block_is_still_handed_out": (4,), "shared_blocks_count_as_freed": (4,),
    "swap_in_goes_to_the_wrong_block": (20,), "watermark_is_ignored": (18,), "weights_of_tenants_are_ignored": (28,),
}  # fmt: skip


planted = planted_by_name(BUGS)


def message_of(bug: Bug, *, outputs_only: bool = False) -> str:
    seeds = (*FIRST_SEEDS.get(bug.make.__name__, ()), *range(MOST_SEEDS))
    return run_until_caught(bug, (World(seed, outputs_only=outputs_only) for seed in seeds), num_steps=STEPS)


@pytest.mark.parametrize("planted", BUGS, indirect=True)
def test_it_is_caught(planted: Bug) -> None:
    message_of(planted)


@pytest.mark.parametrize("planted", [name for name, bug in BUGS.items() if bug.shows_in_tokens], indirect=True)
def test_it_shows_as_a_wrong_token(planted: Bug) -> None:
    """Look at the outputs alone: the fake model reads the contents of the blocks."""
    assert "the oracle" in message_of(planted, outputs_only=True)


@pytest.mark.parametrize("planted", ["last_block_is_off_by_one"], indirect=True)
def test_it_says_how_to_see_it_again(planted: Bug) -> None:
    message = message_of(planted)
    found = re.search(
        r"again: SPLITFUSE_TEST_SEEDS=(\d+)-\1 SPLITFUSE_TEST_STEPS=(\d+) python -m pytest (\S+)::", message
    )
    assert found is not None
    assert (Path(__file__).parents[3] / found[3]).exists()
    with pytest.raises(AssertionError, match=re.escape(message)):
        World(int(found[1])).run(int(found[2]))
