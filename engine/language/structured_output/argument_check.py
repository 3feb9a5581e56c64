"""ArgumentCheck: arguments of calls where no grammar reaches, in fences, against their tools' schemas."""

from collections.abc import Container, Mapping, Sequence
from functools import cached_property
from typing import Any

from .call_grammar import arguments_schema
from .schema_check import CannotCheckError, schema_errors
from .schemas.document import TooManySchemasError
from .schemas.static_schema import static_schema


class ArgumentCheck:
    """Check of calls of the tools with these names; other calls pass."""

    def __init__(self, tools: Sequence[Mapping[str, Any]], names: Container[str]) -> None:
        self._functions = [tool["function"] for tool in tools if tool["function"]["name"] in names]

    def __call__(self, name: str, arguments: str) -> bool:
        """True if the arguments, JSON text, fit the schema. Where a schema is too large, none fit."""
        try:
            return not schema_errors(self._schemas.get(name, True), arguments)
        except CannotCheckError:
            return False

    @cached_property
    def _schemas(self) -> dict[str, Any]:
        try:
            return {function["name"]: static_schema(arguments_schema(function)).schema for function in self._functions}
        except (RecursionError, TooManySchemasError):
            return {function["name"]: False for function in self._functions}
