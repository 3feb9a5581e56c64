"""ConstraintCompiler: from a request's structured outputs to token constraints. The structured-output extra has one."""

from concurrent.futures import Future
from typing import Any, Protocol

from ..core.constraint import TokenConstraint


class CompiledConstraint(Protocol):
    """A constraint that requests share."""

    def begin(self, *, max_tokens: int | None = None, forced_from: int | None = None) -> TokenConstraint:
        """Return the state of one output of at most `max_tokens` tokens, whose completion is forced; None: it is not.

        `forced_from`: number of output tokens before a completion that another process began.
        """


class ConstraintCompiler(Protocol):
    """Compiles in a thread of its own; equal constraints are compiled once."""

    def stats(self) -> dict[str, int]:
        """Return counters for /stats."""

    def prepare(self) -> Future[Any]:
        """Build the tables that the first compilation needs."""

    def compile(self, outputs: Any) -> Future[CompiledConstraint]:
        """Compile a StructuredOutputs. The future raises InvalidRequestError."""
