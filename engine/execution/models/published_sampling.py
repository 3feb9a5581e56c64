"""Published sampling: the values that a family's authors publish for its chat models, for files that state none.

A row of the table names a model of huggingface.co, whose card or generation_config.json has the values. Several
families share an architecture of config.json, and a text of the chat template tells them apart.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

# llama.cpp's defaults, for a model whose authors publish none and for text that no template frames.
GENERIC = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
_TABLE = Path(__file__).with_suffix(".json")


class Published(NamedTuple):
    """Row of the table: values of one family, whose chat templates all have the text `marker`."""

    family: str
    architectures: list[str]
    marker: str
    values: dict[str, Any]
    source: str


def table() -> list[Published]:
    """Return the rows; the first one that fits a model counts."""
    return [Published(**row) for row in json.loads(_TABLE.read_text(encoding="utf-8"))]


def published_sampling(architecture: str, template: str) -> Published | None:
    """Return the row of a model with this chat template; None if its authors publish no values."""
    return next((row for row in table() if architecture in row.architectures and row.marker in template), None)
