"""Rows of architectures.json: each names tables and functions that exist, and a family that is served."""

from splitfuse.engine.execution.models.registry import model_class
from splitfuse.engine.formats.gguf import architectures
from splitfuse.engine.formats.gguf.architectures import ARCHITECTURES, names_of_families


def test_each_part_of_the_fields_is_a_row_or_a_function() -> None:
    texts = {part for row in ARCHITECTURES.values() for part in row.parts if isinstance(part, str)}
    assert texts
    assert texts <= architectures._FUNCTIONS.keys()
    assert {
        kind for row in ARCHITECTURES.values() for part in row.parts if isinstance(part, dict) for kind in part
    } == {*("keys", "numbers", "tensors", "values")}


def test_each_row_serves_a_family() -> None:
    for family in names_of_families():
        assert model_class(family).__name__ == family
