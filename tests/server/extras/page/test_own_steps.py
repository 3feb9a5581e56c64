"""The share of a step's record that a key may see."""

from splitfuse.server.extras.page.step_broadcast import own_steps

STEP = {
    "step": 7, "start": 1.0, "end": 1.5, "budget": 512, "chunks": [[0, 0, 480], [1, 0, 8]], "decodes": [2, 3],
    "drafts": [[2, 4, 3]], "forced": [3], "admitted": [[0, 16]], "preempted": [[4, "swap", 0.1, 0.2]],
    "stopped_at": [[5, "blocks", 3]], "left_out": [6], "running": 5, "waiting": 2, "swapped": 1, "blocks": [40, 2],
    "evicted": 9,
}  # fmt: skip


def test_only_rows_of_these_requests_and_no_sum_over_others():
    assert own_steps([STEP], {1, 3, 6, 40}) == [
        {
            "step": 7, "start": 1.0, "end": 1.5, "chunks": [[1, 0, 8]], "decodes": [3], "forced": [3], "left_out": [6],
            "running": 3,
        }
    ]  # fmt: skip


def test_a_step_without_them_is_not_told():
    assert own_steps([STEP, STEP | {"decodes": [9]}], {9}) == [
        {"step": 7, "start": 1.0, "end": 1.5, "decodes": [9], "running": 1}
    ]
    assert own_steps([STEP], set()) == []
