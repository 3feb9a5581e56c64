"""--rope-scaling gives what the same scaling in config.json gives, over the longer context, or is refused."""

from typing import Any

import pytest

from splitfuse.engine.config.named_models import DEMO_FOLDER
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.execution.models.registry import parse_model_config, read_model_config
from splitfuse.engine.formats.json_file import read_json

DEMO = read_json(DEMO_FOLDER / "config.json")
YARN = {"rope_type": "yarn", "factor": 4.0}


def test_it_equals_the_scaling_of_config_json() -> None:
    scaling = {**YARN, "original_max_position_embeddings": 2048}
    longer = {**DEMO, "max_position_embeddings": 8192, "rope_scaling": scaling}
    ours, theirs = read_model_config(DEMO_FOLDER, rope_scaling=YARN), parse_model_config(longer, generation={})
    assert ours.max_position_embeddings == ours.max_len_limit == 8192
    assert [vars(rope) for rope in ours.ropes] == [vars(rope) for rope in theirs.ropes]


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_it_replaces_the_models_own_and_keeps_its_theta(kind: str) -> None:
    own = {"rope_theta": 500.0, "rope_type": "linear", "factor": 2.0, "original_max_position_embeddings": 512}
    raw = {**DEMO, "rope_theta": None, "rope_parameters": own}
    config = parse_model_config(raw, generation={}, rope_scaling={"type": kind, "factor": 8})
    (rope,) = {*config.ropes}
    assert (rope.theta, rope.scaling["rope_type"], rope.scaling["factor"]) == (500.0, kind, 8)
    assert config.max_position_embeddings == 4096


@pytest.mark.parametrize(
    ("changes", "scaling", "words"),
    [
        ({}, {"rope_type": "dynamic", "factor": 2}, "--rope-scaling: dynamic .* use yarn"),
        ({}, {"rope_type": "mrope", "factor": 2}, "known: linear, llama3, yarn"),
        ({}, {"factor": 2}, "rope_type None"),
        ({}, {"rope_type": "yarn"}, "factor"),
        ({"partial_rotary_factor": 0.0}, YARN, "learned its positions"),
        ({"rope_parameters": {"full_attention": {}, "sliding_attention": {}}}, YARN, "several rotary"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], scaling: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_model_config({**DEMO, **changes}, generation={}, rope_scaling=scaling)
