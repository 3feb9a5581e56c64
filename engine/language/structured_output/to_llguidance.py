"""Translation of a constraint to the grammar text that llguidance's compiler reads. Compiles nothing."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import InvalidRequestError
from .enforceable import enforceable
from .params import JSON_SPACING, StructuredOutputs
from .refusal import refusal
from .schemas.document import TooManySchemasError
from .schemas.schema_walker import LARGE_CHARS, WALKER

# The converter is plain Python: it takes about 4 us per character and holds the GIL.
_MAX_GBNF_CHARS = 16 * 2**10


def grammar_source(outputs: StructuredOutputs) -> str:
    """Return the text to compile. Raises InvalidRequestError for errors that show without compiling."""
    from llguidance import LLMatcher

    match outputs.kind:
        case "json" | "json_object":
            options: Any = spacing(outputs)
            return LLMatcher.grammar_from_json_schema(_grammar_schema_text(outputs), defaults=options)
        case "regex":
            assert outputs.regex is not None
            return LLMatcher.grammar_from_regex(outputs.regex)
        case "choice":
            assert outputs.choice is not None
            # Upper case makes the choice one lexeme: 3 ms for 1,024 strings, and no limit on their number.
            return LLMatcher.grammar_from_lark("start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, outputs.choice)))
        case _:
            assert outputs.grammar is not None
            return LLMatcher.grammar_from_lark(_lark(outputs.grammar, outputs))


def is_walked_elsewhere(outputs: StructuredOutputs) -> bool:
    """True if the schema is so large that another process finds its enforceable part."""
    return outputs.kind == "json" and len(str(outputs.json)) > LARGE_CHARS


def _schema_text(outputs: StructuredOutputs) -> str:
    return '{"type": "object"}' if outputs.kind == "json_object" else str(outputs.json)


def read_schema(outputs: StructuredOutputs) -> dict[str, Any]:
    """Parse the JSON schema of the constraint. Raises InvalidRequestError."""
    try:
        parsed = json.loads(_schema_text(outputs))
    except (ValueError, RecursionError) as exc:
        raise refusal(outputs, f"the schema is not valid JSON ({exc})") from exc
    if parsed is True:
        return {}
    if not isinstance(parsed, dict):
        kind = type(parsed).__name__
        raise refusal(outputs, "no value fits it" if parsed is False else f"a JSON schema is an object, not {kind}")
    # The compiler's own options. With others than this one, a client's JSON would be none.
    options = parsed.pop("x-guidance", None)
    if isinstance(options, dict) and options.get("coerce_one_of") is True:
        parsed["x-guidance"] = {"coerce_one_of": True}
    return parsed


def grammar_schema(outputs: StructuredOutputs) -> Any:
    """Return the schema that the grammar is made from. Raises InvalidRequestError."""
    schema = read_schema(outputs)
    with walk_errors(outputs):
        enforced = enforceable(schema)
    # Without `relaxes`, llguidance refuses the keywords that no grammar enforces.
    return enforced.schema if outputs.relaxes or not enforced.unenforced else schema


def _grammar_schema_text(outputs: StructuredOutputs) -> str:
    if not is_walked_elsewhere(outputs):
        return json.dumps(grammar_schema(outputs))
    text = json.dumps(read_schema(outputs))
    with walk_errors(outputs):
        walked = WALKER.walk(text).result()
    return walked.text if outputs.relaxes or not walked.unenforced else text


@contextmanager
def walk_errors(outputs: StructuredOutputs | None) -> Iterator[None]:
    """Raise InvalidRequestError for a schema that cannot be walked; without `outputs` the schema is a tool's."""
    try:
        yield
    except RecursionError as exc:
        assert outputs is not None  # a tool's schema comes inside a body, which nests less deeply
        raise refusal(outputs, "the schema nests too deeply") from exc
    except TooManySchemasError as exc:
        if outputs is None:
            raise InvalidRequestError(f"tools: {exc}", param="tools") from exc
        raise refusal(outputs, str(exc)) from exc


def spacing(outputs: StructuredOutputs) -> dict[str, Any]:
    """Return the places where the JSON may have whitespace, as llguidance's options."""
    if outputs.whitespace_pattern is not None:
        return {"whitespace_pattern": outputs.whitespace_pattern}
    return {"whitespace_flexible": False} if outputs.disable_any_whitespace else dict(JSON_SPACING)


def _lark(text: str, outputs: StructuredOutputs) -> str:
    """Return Lark unchanged, and convert llama.cpp's notation (GBNF), which vLLM's examples use."""
    from llguidance.gbnf_to_lark import any_to_lark

    if "::=" not in text:
        return text
    if len(text) > _MAX_GBNF_CHARS:
        raise refusal(outputs, f"of GBNF at most {_MAX_GBNF_CHARS} characters are read, not {len(text)}; write Lark")
    try:
        return any_to_lark(text)
    except Exception as exc:  # the converter raises plain Exception, IndexError, RecursionError …
        raise refusal(outputs, f"as GBNF it cannot be read ({type(exc).__name__}: {exc})") from exc
