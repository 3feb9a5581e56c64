"""ConstraintCompiler: makes token constraints of structured outputs. The structured-output extra has one."""

from concurrent.futures import Future
from typing import Any, Protocol

from ..core.constraint import TokenConstraint


class CompiledConstraint(Protocol):
    """Compiled constraint, which requests share."""

    def begin(self, *, max_tokens: int | None = None, forced_from: int | None = None) -> TokenConstraint:
        """Create the state of one output.

        `max_tokens`: length by which its completion is forced; None: never. `forced_from`: number of output tokens
        before a forced completion that another process began.
        """


class ConstraintCompiler(Protocol):
    """Compiler with a thread of its own. Equal constraints are compiled once."""

    def stats(self) -> dict[str, int]:
        """Return counters for /stats."""

    def prepare(self) -> Future[Any]:
        """Build the tables that the first compilation needs."""

    def compile(self, outputs: Any) -> Future[CompiledConstraint]:
        """Compile a StructuredOutputs. The future raises InvalidRequestError."""
