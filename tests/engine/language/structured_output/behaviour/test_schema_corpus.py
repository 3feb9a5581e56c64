"""Real schemas from packages: the named few are refused, and no answer that breaks its schema goes without a mark.

`make schemas` takes all of them; corpus/SOURCES.tsv names their sources and licences.
"""

import json
import lzma
import random
import re
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from schema_answers import compiled_grammar, grammar_error, random_answer

from splitfuse.engine.language.structured_output.enforceable import enforceable
from splitfuse.engine.language.structured_output.params import StructuredOutputs
from splitfuse.engine.language.structured_output.sandbox_worker import TIME_LIMIT_S
from splitfuse.engine.language.structured_output.schema_check import CannotCheckError, schema_errors
from splitfuse.engine.language.structured_output.schemas.static_schema import static_schema
from splitfuse.engine.language.structured_output.to_llguidance import grammar_source

CORPUS = Path(__file__).parents[1] / "corpus"
REFUSED: dict[str, str] = json.loads((CORPUS / "refused.json").read_text())  # beginnings of the reasons, by name
LINES = lzma.decompress((CORPUS / "schemas.jsonl.xz").read_bytes()).decode().split("\n")
NAMES = [line[9 : line.index('"', 9)] for line in LINES]  # parsing all takes 0.3 s
NUM_ANSWERS = 2


def test_few_schemas_are_refused() -> None:
    assert len(NAMES) >= 300
    assert set(NAMES) >= REFUSED.keys()
    assert len(REFUSED) <= 0.05 * len(NAMES)


@pytest.mark.sampled(34)
@pytest.mark.parametrize("line", LINES, ids=NAMES)
def test_a_real_schema_is_taken_and_its_answers_are_valid_or_marked(line: str) -> None:
    name, schema = (found := json.loads(line))["name"], found["schema"]
    start = time.process_time()
    source = grammar_source(StructuredOutputs(json=schema, relaxes=True))
    error = grammar_error(source)
    assert time.process_time() - start < TIME_LIMIT_S
    assert bool(error) == (name in REFUSED), error
    assert REFUSED.get(name, "") in error
    if not error:
        check_answers(schema, compiled_grammar(source), name)


def check_answers(schema: Any, grammar: Any, name: str) -> None:
    """Check that answers are valid, or said to be invalid, or not checked as the marks say."""
    unenforced = enforceable(schema).unenforced
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(schema)
    for seed in range(NUM_ANSWERS):
        rng = random.Random(f"{name} {seed}")
        text = random_answer(grammar, rng, num_tokens=rng.choice([5, 40, 150]))
        if text is None:
            continue
        found = errors(schema, text)
        try:
            is_valid = validator.is_valid(json.loads(text))
        except (re.error, OverflowError):  # JavaScript's patterns, numbers beyond floats
            continue
        if "Infinity" in json.dumps(json.loads(text)):
            continue
        assert is_valid or (unenforced and (found is None or found)), text
        if "draft-04" not in str(schema.get("$schema")):  # in which 1.0 is no integer, unlike here
            assert not (is_valid and found), text


def errors(schema: Any, text: str) -> list[Any] | None:
    """Return the errors that an answer reports; None if the answer cannot be checked."""
    try:
        return list(schema_errors(static_schema(schema).schema, text))
    except CannotCheckError:
        return None
