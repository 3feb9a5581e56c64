"""Targets and ignore lists of compressed-tensors."""

import time
from typing import Any

import pytest

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.formats.quantization.targets import targets

NAME = "model.layers.3.mlp.experts.12.down_proj"


@pytest.mark.parametrize(
    ("texts", "rank"),
    [
        ([NAME], 3),
        (["Linear", NAME], 3),
        (["Linear", "re:.*down_proj$"], 2),
        (["re:model.layers.[0-3].*"], 2),
        (["Linear"], 1),
        (["re:layers"], 0),  # a pattern matches from the name's start
        (["down_proj"], 0),
        (["Embedding"], 0),
        ([], 0),
        (None, 0),
    ],
)
def test_the_closest_counts(texts: Any, rank: int) -> None:
    assert targets(texts, where="targets").rank(NAME) == rank


@pytest.mark.parametrize("text", ["(.+)+x", "(a|a)*b", "(.*)*" * 9 + "x", "(([a-z._0-9]*)*)*\\$"])
def test_patterns_that_backtracking_would_never_end_take_no_time(text: str) -> None:
    start = time.thread_time()
    assert targets([f"re:{text}"], where="targets").rank("a" * 10_000) == 0
    assert time.thread_time() - start < 0.5


@pytest.mark.parametrize("text", ["(", "a{99999999999}", "(?!a)b", r"(a)\1"])
def test_what_no_engine_of_linear_time_reads_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"targets: the pattern .* cannot be used: ") as caught:
        targets([f"re:{text}"], where="targets")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("texts", ["Linear", [1], {"Linear": 1}])
def test_anything_but_texts_is_refused(texts: Any) -> None:
    with pytest.raises(ConfigError, match="targets must be a list of texts"):
        targets(texts, where="targets")
