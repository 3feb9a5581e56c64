"""vLLM's settings of speculation have vLLM's meaning, or are refused with a line that names the right spelling."""

from typing import Any

import pytest

from splitfuse.engine.config import EngineConfig
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.extras.spec_decode.speculative_config import SpeculativeConfig


@pytest.mark.parametrize(
    ("values", "method", "model", "num_tokens", "lookup"),
    [
        ({"method": "ngram"}, "ngram", "", 8, (2, 8)),
        ({"model": "ngram"}, "ngram", "", 8, (2, 8)),
        ({"method": "suffix"}, "suffix", "", 32, (2, 8)),
        ({"model": "suffix", "num_speculative_tokens": 4}, "suffix", "", 4, (2, 8)),
        ({"model": "[ngram]", "num_speculative_tokens": 4}, "ngram", "", 4, (2, 8)),
        ({"method": "ngram", "prompt_lookup_max": 4}, "ngram", "", 8, (2, 4)),
        ({"method": "ngram", "prompt_lookup_max": 1}, "ngram", "", 8, (1, 1)),
        ({"method": "ngram", "prompt_lookup_min": 12}, "ngram", "", 8, (12, 12)),
        ({"method": "ngram", "model": None, "prompt_lookup_min": None}, "ngram", "", 8, (2, 8)),
        ({"model": "some/folder"}, "draft_model", "some/folder", 5, (2, 8)),
        ({"method": "draft_model", "model": "x", "num_speculative_tokens": 3}, "draft_model", "x", 3, (2, 8)),
    ],
)
def test_vllms_json_is_read(
    values: dict[str, Any], method: str, model: str, num_tokens: int, lookup: tuple[int, int]
) -> None:
    config = EngineConfig(speculative_config=values).speculation
    assert config == SpeculativeConfig(
        method=method,
        model=model,
        num_speculative_tokens=num_tokens,
        prompt_lookup_min=lookup[0],
        prompt_lookup_max=lookup[1],
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"speculative_config": {}}, "method None is not one of ngram, suffix, draft_model"),
        (
            {"speculative_config": {"method": "eagle", "model": "x"}},
            "method 'eagle' is not one of ngram, suffix, draft_model",
        ),
        ({"speculative_config": {"method": "ngram", "num_spec_tokens": 3}}, "known are .*num_speculative_tokens"),
        ({"speculative_config": {"method": "draft_model"}}, 'needs a "model", a folder or hub id'),
        ({"speculative_config": {"method": "ngram", "model": "x"}}, "ngram has no model"),
        ({"speculative_config": {"method": "suffix", "model": "x"}}, "suffix has no model"),
        ({"speculative_config": {"method": "suffix", "prompt_lookup_min": 3}}, "go with method ngram"),
        ({"speculative_config": {"suffix_decoding_max_tree_depth": 8, "model": "suffix"}}, "is not known"),
        ({"speculative_config": {"model": 3}}, "model must be a folder or hub id"),
        ({"speculative_config": {"model": "x", "prompt_lookup_max": 3}}, "go with method ngram"),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 0}},
            "an integer of at least 1 and at most 32, not 0",
        ),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 33}},
            "an integer of at least 1 and at most 32, not 33",
        ),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": True}}, "not True"),
        (
            {"speculative_config": {"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 3}},
            "prompt_lookup_min 5 is more than prompt_lookup_max 3",
        ),
        ({"speculative_config": {"method": "ngram", "adaptive": 1}}, "adaptive must be true or false"),
    ],
)
def test_what_cannot_be_meant_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**settings)
