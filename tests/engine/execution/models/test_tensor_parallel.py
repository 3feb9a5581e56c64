"""The cuts of a model into ranks and slices."""

import pytest

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.execution.models.tensor_parallel import TensorParallel, rows_of_parts


def ranks(size: int, num_slices: int | None = None) -> list[TensorParallel]:
    return [TensorParallel(rank=rank, size=size, num_slices=num_slices or size) for rank in range(size)]


def spans(rows: list[slice]) -> list[tuple[int, int]]:
    return [(part.start, part.stop) for part in rows]


def test_each_rank_has_its_queries_with_the_kv_heads_that_they_read() -> None:
    first, second = (rank.qkv_rows(4, 2, 8) for rank in ranks(2))
    assert spans(first) == [(0, 16), (32, 40), (48, 56)]
    assert spans(second) == [(16, 32), (40, 48), (56, 64)]


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4, 8])
def test_kv_heads_that_are_fewer_than_ranks_are_repeated(num_kv_heads: int) -> None:
    for rank in ranks(4):
        heads, queries = rank.kv_heads(num_kv_heads), rank.share(8)
        read = {query * num_kv_heads // 8 for query in range(queries.start, queries.stop)}
        assert read == set(range(heads.start, heads.stop))


def test_slices_of_all_ranks_follow_each_other() -> None:
    for size in (1, 2, 4):
        assert spans([part for rank in ranks(size, 4) for part in rank.slices(40)]) == [
            (0, 10), (10, 20), (20, 30), (30, 40),
        ]  # fmt: skip


def test_every_row_of_the_vocabulary_is_on_one_rank() -> None:
    for size in (2, 3, 4):
        rows = [row for rank in ranks(size) for row in range(271)[rank.vocabulary(271)]]
        assert rows == list(range(271))


def test_rows_of_a_stack_are_found_in_its_parts() -> None:
    rows = [slice(2, 4), slice(8, 9), slice(9, 10)]
    assert [spans(part) for part in rows_of_parts(rows, [8, 1, 1])] == [[(2, 4)], [(0, 1)], [(0, 1)]]
    assert [spans(part) for part in rows_of_parts(rows, [10])] == [spans(rows)]


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (lambda rank: rank.qkv_rows(10, 5, 8), "num_attention_heads 10 .* tensor_parallel_size 4"),
        (lambda rank: rank.kv_heads(6), "num_key_value_heads 6 .* tensor_parallel_size 4"),
        (lambda rank: rank.slices(90), "width 90 .* tensor_parallel_slices 4"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_its_number(cut: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        cut(ranks(4)[1])  # type: ignore[operator]
