"""Every field that the newest `openai` and `anthropic` can send is acted on, ignored aloud or refused by name."""

import asyncio
import re
import runpy
from pathlib import Path

import pytest
from answer_fields import collected
from field_fates import FIELDS, IGNORED, REFUSED, SILENT, fates

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def shown():
    """Return the fields of answers, by route."""
    return asyncio.run(collected())


@pytest.mark.parametrize("route", FIELDS["requests"])
def test_every_field_of_a_request_has_a_fate(route):
    found = fates(route)
    assert found
    assert [path for path, fate in found.items() if fate.kind == SILENT] == []
    for path, fate in found.items():
        if fate.kind == REFUSED:
            words = {*re.findall(r"\w+", path)}
            assert any(word in fate.note for word in words), (path, fate.note)


async def test_unknown_parameters_of_a_query_are_named(served):
    answer = await served.client.get("/v1/models?limit=1&after_id=x&beta=true")
    assert (answer.status_code, answer.headers["x-ignored-fields"]) == (200, "after_id,limit")
    assert fates("GET /v1/models")["limit"].kind == IGNORED


def test_answers_have_every_required_field(shown):
    for route, fields in FIELDS["answers"].items():
        objects = {name.rpartition(".")[0] for name in shown[route]}
        required = {path for path, is_required in fields.items() if is_required}
        assert {path for path in required - shown[route] if path.rpartition(".")[0] in objects} == set(), route


def test_the_page_is_up_to_date(shown):
    tool = runpy.run_path(str(ROOT / "tests/tools/compatibility_page.py"))
    assert tool["PAGE"].read_text() == tool["page"](shown), "run `make compatibility`"
