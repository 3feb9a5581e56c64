"""Large schemas are walked in another process, with the same result as here."""

import json
import signal

import pytest

from splitfuse.engine.language.structured_output.enforceable import enforceable
from splitfuse.engine.language.structured_output.schemas import schema_walker
from splitfuse.engine.language.structured_output.schemas.document import TooManySchemasError
from splitfuse.engine.language.structured_output.schemas.schema_walker import SchemaWalker
from splitfuse.engine.language.structured_output.schemas.static_schema import MAX_SCHEMAS

PART = {"type": "string", "pattern": "^aé", "not": {"const": "ab"}}
SCHEMA = json.dumps({"type": "object", "properties": {f"f{i}": PART for i in range(3)}})


@pytest.fixture(scope="module")
def walker() -> SchemaWalker:
    return SchemaWalker()


def test_the_other_process_walks(walker: SchemaWalker, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = enforceable(json.loads(SCHEMA))
    monkeypatch.setattr(schema_walker, "enforceable", None)  # nothing is walked here
    first, again = walker.walk(SCHEMA), walker.walk(SCHEMA)
    assert first is again, "requests share a walk"
    walked = first.result()
    assert json.loads(walked.text) == expected.schema
    assert walked.unenforced == expected.unenforced
    assert len(walked.unenforced) == 3


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"items": ' * 900 + "{}" + "}" * 900, RecursionError),
        (json.dumps({"anyOf": [{}] * (MAX_SCHEMAS + 1)}), TooManySchemasError),
    ],
    ids=["deep", "many"],
)
def test_errors_are_those_of_a_walk(walker: SchemaWalker, text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        walker.walk(text).result()


def test_a_killed_process_costs_nothing(walker: SchemaWalker) -> None:
    assert walker.walk("{}").result().text == "{}"
    assert walker._process.current is not None
    walker._process.current.process.send_signal(signal.SIGKILL)
    assert walker.walk("true").result().text == "true"


def test_few_results_are_kept(walker: SchemaWalker) -> None:
    for number in range(3 * schema_walker._MAX_KEPT):
        walker.walk(json.dumps({"const": number})).result()
    assert len(walker._kept) == schema_walker._MAX_KEPT
