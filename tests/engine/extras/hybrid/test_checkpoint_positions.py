"""Positions of checkpoints that rows of a request pass."""

from splitfuse.engine.core.request import Request
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.extras.hybrid.checkpoint_positions import CheckpointPositions, Position

CHOOSER = CheckpointPositions(block_size=16, grid=256, num_checkpoints=100)


def request_of(num_prompt: int, n: int = 1) -> Request:
    tokens = list(range(num_prompt))
    return Request(
        request_id="r", prompt_token_ids=tokens, params=SamplingParams(n=n), max_num_tokens=num_prompt + 100, seed=0
    )


def wanted(num_prompt: int, begin: int, end: int, num_in_chain: int = 0, n: int = 1) -> list[Position]:
    return CHOOSER.wanted(request_of(num_prompt, n), begin=begin, end=end, num_in_chain=num_in_chain)


def test_a_prompt_has_a_grid_and_its_last_edge() -> None:
    assert [position.num_tokens for position in wanted(1000, 0, 1000)] == [256, 512, 768, 992]
    assert [position.num_tokens for position in wanted(1000, 300, 700)] == [512]
    assert [position.num_tokens for position in wanted(1000, 512, 520)] == []


def test_a_prompt_that_ends_at_an_edge_can_be_asked_again() -> None:
    """The same prompt computes its last token again, so the edge before it helps; longer ones begin at the last."""
    assert wanted(64, 0, 64) == [Position(48, is_edge=True, is_inner=True), Position(64, is_edge=True, is_trail=True)]


def test_a_branch_off_a_cached_prompt_is_kept() -> None:
    assert Position(400, is_edge=True) in wanted(1000, 256, 1000, num_in_chain=400)


def test_an_output_has_its_latest_edge() -> None:
    assert wanted(100, 111, 112) == [Position(112, is_edge=True, is_trail=True)]
    assert wanted(100, 100, 150) == [Position(144, is_edge=True, is_trail=True)]
    assert wanted(100, 112, 127) == []


def test_further_outputs_begin_at_the_last_token() -> None:
    assert Position(99, is_edge=False) in wanted(100, 0, 100, n=3)
    assert wanted(1, 0, 1, n=3) == []


def test_a_prompt_takes_a_part_of_the_checkpoints() -> None:
    few = CheckpointPositions(block_size=16, grid=256, num_checkpoints=16)
    positions = few.wanted(request_of(10_000), begin=0, end=10_000, num_in_chain=0)
    assert [position.num_tokens for position in positions] == [4096, 8192, 9984, 10_000]
    fewer = few._replace(num_checkpoints=15)
    positions = fewer.wanted(request_of(10_000), begin=0, end=10_000, num_in_chain=0)
    assert [position.num_tokens for position in positions] == [9984, 10_000]
