"""Typed parameters: our sentences for them, and no route that reads a parameter by hand."""

import re
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from splitfuse import server
from splitfuse.server.api.native.request import last_event, preferred_wait_s
from splitfuse.server.api.parameters import DIGITS, says
from splitfuse.server.api.request_model import refusal
from splitfuse.server.app import build_app
from splitfuse.server.settings import Settings

ROOT = Path(server.__file__).parent
LIMIT = TypeAdapter(Annotated[int, Field(ge=1, le=100), DIGITS, says("must be an integer from 1 to 100")])


@pytest.mark.parametrize("text", ["0", "101", "", "+1", " 1", "1.0", "1_0", "x", "٣"])
def test_a_parameter_has_one_sentence_for_all_faults(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        LIMIT.validate_python(text)
    error = refusal({**caught.value.errors()[0], "loc": ("limit",)})
    assert (str(error), error.param) == ("limit must be an integer from 1 to 100", "limit")
    assert LIMIT.validate_python("100") == 100


def test_a_parameter_keeps_its_schema() -> None:
    assert LIMIT.json_schema() == {"type": "integer", "minimum": 1, "maximum": 100}


def test_preferences_of_several_headers_count() -> None:
    assert preferred_wait_s(["respond-async", 'handling=lenient, Wait="5"']) == 5
    assert preferred_wait_s(None) == preferred_wait_s(["wait=x"]) == 0


def test_the_header_of_the_last_event_wins() -> None:
    assert (last_event("3", "1"), last_event(None, "1"), last_event("", ""), last_event(None, None)) == (3, 1, -1, -1)


@pytest.mark.parametrize("path", [*ROOT.rglob("routes.py"), *(ROOT / "api").glob("*.py")], ids=lambda path: str(path))
def test_no_route_reads_a_parameter_by_hand(path: Path) -> None:
    if path.name == "request_model.py":  # reads the header X-Request-Id, which every request may have
        return
    assert re.findall(r"request\.(?:query_params|path_params|headers)\b", path.read_text()) == []


def test_the_document_shows_no_parameter_as_null_and_every_default() -> None:
    paths = build_app(Settings()).openapi()["paths"]
    parameters = [
        one for methods in paths.values() for method in methods.values() for one in method.get("parameters", ())
    ]
    assert len(parameters) > 20
    assert not any("null" in str(one["schema"]) or "title" in one["schema"] for one in parameters)
    limits = {one["schema"]["default"] for one in parameters if one["name"] == "limit"}
    assert limits == {20, 10_000}
