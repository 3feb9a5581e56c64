"""A group's way over a command line."""

import pytest

from splitfuse.engine.extras.parallel.group import Group


@pytest.mark.parametrize("in_order", [False, True])
def test_a_group_is_read_as_it_was_written(in_order: bool) -> None:
    group = Group("nccl", 2, 4, in_order)
    assert Group.of_arguments(group.to_arguments()) == group
