"""Cores that a rank computes on."""

from pathlib import Path

import pytest

from splitfuse.engine.extras.parallel.cores import cores_of_rank, numa_nodes


def test_nodes_are_read_as_the_kernel_lists_them(tmp_path: Path) -> None:
    for node, cores in {10: "5\n", 0: "0-1,8-9\n", 1: "2-3,10\n", 2: "\n"}.items():
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}/cpulist").write_text(cores)
    assert numa_nodes(tmp_path) == [{0, 1, 8, 9}, {2, 3, 10}, {5}]


def test_one_node_where_the_system_does_not_say(tmp_path: Path) -> None:
    assert len(numa_nodes(tmp_path)) == 1


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_core_is_of_one_rank(size: int) -> None:
    nodes = [{0, 1, 4, 5}, {2, 3, 6, 7}]
    shares = [cores_of_rank(rank, size, usable=set(range(8)), nodes=nodes) for rank in range(size)]
    assert sorted(core for share in shares for core in share) == list(range(8))
    if size in (2, 4):
        assert all(any(set(share) <= node for node in nodes) for share in shares)


def test_more_ranks_than_cores_share_them() -> None:
    assert cores_of_rank(2, 3, usable={4, 7}, nodes=[{4, 7}]) == [4, 7]
