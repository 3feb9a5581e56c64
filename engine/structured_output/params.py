"""What shape an output must have, as a request says it: a JSON schema, any JSON object, a regex, a choice or a grammar.

Knows the fields and their limits; whether a schema or a grammar makes sense is for the compiler to say. No tensors.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..errors import InvalidRequestError

MAX_CONSTRAINT_BYTES = 128 * 2**10
MAX_CHOICES = 1024
KINDS = ("json", "json_object", "regex", "choice", "grammar")
# Where JSON may have whitespace: at most one space after "," and ":". Free whitespace lets a weak model write blank
# lines for ever. In llguidance's words, so a `%json` inside a grammar takes it too, as the schema's "x-guidance".
JSON_SPACING: Mapping[str, Any] = MappingProxyType(
    {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
)


@dataclass(frozen=True, kw_only=True)
class StructuredOutputs:
    """Exactly one constraint, under vLLM's names. Raises InvalidRequestError.

    `json`: a JSON schema as an object or as text; kept as text. `grammar`: Lark in llguidance's dialect, which takes
    `%json {schema}` too. `choice`: the output is one of these strings.
    """

    json: str | Mapping[str, Any] | None = None
    json_object: bool | None = None  # True: any JSON object
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    disable_any_whitespace: bool = False  # json and json_object: no space after "," and ":" either
    whitespace_pattern: str | None = None  # json and json_object: a regex of what may stand between tokens instead
    param: str | None = None  # what a refusal is to call it, if a door spells it otherwise

    def __post_init__(self) -> None:
        try:
            self._check()
        except InvalidRequestError as exc:
            if self.param is not None:
                exc.args = (str(exc).replace(str(exc.param), self.param),)
                exc.param = self.param
            raise

    def _check(self) -> None:
        if isinstance(self.json, Mapping):
            object.__setattr__(self, "json", _dumped(self.json))
        if isinstance(self.choice, (list, tuple)):
            object.__setattr__(self, "choice", tuple(self.choice))
        for name in ("json", "regex", "grammar", "whitespace_pattern"):
            value = getattr(self, name)
            if value is not None:
                _check_text(name, value)
        self._check_flags()
        self._check_choice()
        self._check_relations()

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "StructuredOutputs":
        """Build from a request's JSON object. A field set to null counts as absent; unknown names are refused."""
        unknown = sorted(set(fields) - FIELD_NAMES)
        if unknown:
            raise _refusal(
                f"structured_outputs.{unknown[0][:60]} is not known; known are {', '.join(sorted(FIELD_NAMES))}",
                unknown[0],
            )
        return cls(**{name: value for name, value in fields.items() if value is not None})

    @property
    def name(self) -> str:
        """What the request calls it."""
        return self.param or f"structured_outputs.{self.kind}"

    @property
    def kind(self) -> str:
        """Which of KINDS is set."""
        return next(name for name in KINDS if _is_set(getattr(self, name)))

    def _check_flags(self) -> None:
        for name in ("json_object", "disable_any_whitespace"):
            value = getattr(self, name)
            if not (isinstance(value, bool) or (value is None and name == "json_object")):
                raise _refusal(f"structured_outputs.{name} must be true or false", name)

    def _check_choice(self) -> None:
        if self.choice is None:
            return
        if not isinstance(self.choice, tuple) or not all(isinstance(item, str) and item for item in self.choice):
            raise _refusal("structured_outputs.choice must be a list of strings that are not empty", "choice")
        if not 0 < len(self.choice) <= MAX_CHOICES:
            raise _refusal(
                f"structured_outputs.choice takes 1 to {MAX_CHOICES} strings, not {len(self.choice)}", "choice"
            )
        _check_text("choice", "".join(self.choice))

    def _check_relations(self) -> None:
        given = [name for name in KINDS if _is_set(getattr(self, name))]
        if len(given) != 1:
            what = f"{' and '.join(given)} are given" if given else "none is given"
            raise _refusal(f"structured_outputs takes exactly one of {', '.join(KINDS)}; {what}")
        for name in ("disable_any_whitespace", "whitespace_pattern"):
            if getattr(self, name) and given[0] not in ("json", "json_object"):
                raise _refusal(f"structured_outputs.{name} goes with json or json_object, not with {given[0]}", name)
        if self.disable_any_whitespace and self.whitespace_pattern:
            raise _refusal("structured_outputs: disable_any_whitespace and whitespace_pattern contradict each other")


# What a request may name; what a refusal calls it is for a door to say.
FIELD_NAMES = frozenset(f.name for f in dataclasses.fields(StructuredOutputs)) - {"param"}


def _is_set(value: object) -> bool:
    return value is not None and value is not False


def _refusal(message: str, name: str | None = None) -> InvalidRequestError:
    return InvalidRequestError(message, param=f"structured_outputs.{name}" if name else "structured_outputs")


def _dumped(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise _refusal(f"structured_outputs.json cannot be written as JSON: {exc}", "json") from exc


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        kinds = "a JSON schema (an object or its text)" if name == "json" else "a string"
        raise _refusal(f"structured_outputs.{name} must be {kinds}", name)
    try:
        num_bytes = len(value.encode("utf-8"))
    except UnicodeEncodeError as exc:
        raise _refusal(f"structured_outputs.{name} holds a lone surrogate; send valid Unicode", name) from exc
    if not 0 < num_bytes <= MAX_CONSTRAINT_BYTES:
        raise _refusal(f"structured_outputs.{name} must have 1 to {MAX_CONSTRAINT_BYTES} bytes, not {num_bytes}", name)
