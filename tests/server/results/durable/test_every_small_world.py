"""Small worlds of the durable results, visited whole: no crash, full disk or deletion loses, doubles or changes a job.

`make worlds-all` visits all of them. A failure prints its path as a test, which belongs below.
"""

import logging

import journal_bugs
import pytest
from journal_world import JOURNALS
from small_world_search import Broken, Search, follow

# Planted bugs, with a world that shows each, and the number of actions of its shortest path.
FOUND: dict[str, tuple[str, int]] = {
    "answers_do_not_wait_for_the_disk": ("one", 2),
    "first_tokens_of_a_fork_go_before_its_row": ("fork", 4),
    "events_that_a_full_disk_refused_are_forgotten": ("full", 8),
    "endings_that_a_full_disk_refused_are_forgotten": ("full", 10),
    "endings_have_a_transaction_of_their_own": ("one", 8),
    "jobs_that_wait_for_their_turn_count_a_crash": ("suspects", 6),
    "jobs_run_before_the_disk_knows": ("one", 4),
    "ends_of_outputs_are_counted_again_after_a_crash": ("outputs", 11),
    "key_of_an_unfinished_job_is_free": ("keys", 8),
}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="splitfuse.results")  # full disks are part of every world


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", JOURNALS)
def test_no_state_breaks_a_rule(name: str) -> None:
    visited = Search(JOURNALS[name], name).run(most_states=1500)
    print(f"{name}: {visited}")
    assert visited.depth > 5


@pytest.mark.parametrize("name", FOUND)
def test_a_planted_bug_is_found_with_its_shortest_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug, (world, num_actions) = journal_bugs.BUGS[name], FOUND[name]
    monkeypatch.setattr(bug.owner, bug.name, bug.make(getattr(bug.owner, bug.name)))
    with pytest.raises(Broken) as caught:
        Search(JOURNALS[world], world).run()
    print(caught.value)
    assert len(caught.value.path) == num_actions
    assert caught.value.path[0] == "start"


def test_every_bug_is_in_the_table() -> None:
    assert journal_bugs.BUGS.keys() == FOUND.keys()


def test_a_fork_is_on_disk_with_its_first_tokens() -> None:
    follow(JOURNALS["fork"], ["start", "ask a beside", "deliver", "crash", "start"], to_the_end=True)
