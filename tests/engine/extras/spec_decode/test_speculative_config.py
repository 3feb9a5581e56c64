"""vLLM's settings of speculation have vLLM's meaning, or are refused with a line that names the right spelling."""

from typing import Any

import pytest
from tables import table

from splitfuse.engine.config import EngineConfig
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.extras.spec_decode.speculative_config import SpeculativeConfig


@pytest.mark.parametrize(("values", "method", "model", "num_tokens", "lookup"), table(__file__, "read"))
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


@pytest.mark.parametrize(("settings", "message"), table(__file__, "refused"))
def test_what_cannot_be_meant_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**settings)
