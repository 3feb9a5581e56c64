"""Ports: what the core asks of the parts around it. Parts and extras implement these protocols; the core imports none.

Runner, Launcher     compute a batch on a device (execution/runner)
Speculator           drafts tokens (extras/spec_decode)
OutputBuilder        makes text and deltas of tokens (serving/output_processor.py)
RequestObserver      records what each request waited for (extras/inspection/histories.py)
TokenConstraint      restricts the next token (constraint.py; extras/structured_output)
SchedulerListener    is told of each call that changes the scheduler (scheduler.py)
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ..errors import RequestFailedError
from .batch import Batch, Moves, Progress, RowOutput
from .outputs import OutputDelta, RequestHistory
from .plan import Plan
from .preemption import Prices
from .request import Request


class Runner(Protocol):
    """Moves blocks and computes batches: ModelRunner; tests and simulations have others."""

    def move(self, moves: Moves) -> None: ...

    def run(self, batch: Batch) -> list[RowOutput]:
        """Return one output per row. Running rows again gives equal outputs."""


class PendingOutputs(Protocol):
    """The outputs of a launched step."""

    def wait(self) -> list[RowOutput]:
        """Return one output per row, when they have come. Raises the error of the device."""


class Launcher(Protocol):
    """Gives work to a device, in order, and does not wait for it."""

    def move(self, moves: Moves) -> None:
        """Have blocks copied."""

    def launch(self, batch: Batch) -> PendingOutputs | None:
        """Launch a step. A row may end one token after its request's known tokens: the one that was sampled last.

        None if that turns out to be another one than was sampled: the step has to run synchronously.
        """

    def stats(self) -> dict[str, int]:
        """Return the launcher's counters."""

    @property
    def has_idle_work(self) -> bool:
        """True if there is something to do while there are no steps."""

    def do_idle_work(self) -> None:
        """Do a part of it, about as long as a step."""


class Drafted(NamedTuple):
    """Outcome of one request's draft."""

    num_drafted: int
    num_accepted: int


def accepted_per_position(outcomes: Sequence[Drafted]) -> tuple[int, ...]:
    """Count the drafts whose first token was accepted, whose second, and so on."""
    longest = max((outcome.num_accepted for outcome in outcomes), default=0)
    return tuple(sum(outcome.num_accepted > position for outcome in outcomes) for position in range(longest))


class Speculator(Protocol):
    """Drafts tokens for requests that decode. `draft` runs in the step's thread, the rest in the scheduler's."""

    def skips_step(self) -> bool:
        """True if the next step has no drafts and need not be observed. Called once per step."""

    def choose(self, running: Sequence[Request]) -> dict[Request, int]:
        """Return how many tokens to draft for requests that decode; requests without drafts are left out."""

    def draft(self, batch: Batch) -> Batch:
        """Return the batch with its drafts filled in, rows of one token first."""

    def observe(self, batch: Batch, outputs: Sequence[RowOutput], seconds: float) -> list[Drafted]:
        """Learn from a step's outputs and its duration. Return the outcome of each draft."""

    def forget(self, request: Request) -> None:
        """Note that a request has ended."""

    def forget_ended(self) -> None:
        """Drop the state of ended requests; not while the step's thread drafts."""

    def to_dict(self) -> dict[str, Any]:
        """Return counts for /stats."""


class Decoded(NamedTuple):
    """Text of a request's new tokens, and its consequences for the request."""

    text: str = ""
    num_dropped: int = 0  # new tokens after the end of the text
    stop: str | None = None  # stop string that was found
    has_failed: bool = False  # a token could not be decoded
    error: RequestFailedError | None = None  # of the text or of the row


class OutputBuilder(Protocol):
    """Turns tokens into deltas. Decides only: EngineCore applies stop strings and failures to the scheduler."""

    def add(self, request: Request) -> None:
        """Begin with a request."""

    def forget(self, request: Request) -> None:
        """Drop the state of a request whose last delta has been made."""

    def keep_prompt_logprobs(self, batch: Batch, outputs: Sequence[RowOutput]) -> None:
        """Collect a step's prompt logprobs for the delta with the first token."""

    def decode(self, progress: Progress) -> Decoded:
        """Return the text that is certain after these tokens."""

    def delta(self, progress: Progress, decoded: Decoded) -> OutputDelta:
        """Build the delta of a step, once `decoded` has been applied to the scheduler."""


class RequestObserver(Protocol):
    """Records the life of each request. The scheduler calls it beside every change; it is the writer of
    `Request.history`.
    """

    def added(self, request: Request, predicted_ttft: float | None) -> None:
        """A request is queued."""

    def preempted(self, request: Request, now: float, *, is_swapped: bool, prices: Prices) -> None:
        """A request is about to lose its blocks."""

    def admitted(self, request: Request, now: float) -> None:
        """A request runs from now on."""

    def decided(self, plan: Plan, running: Sequence[Request], now: float) -> None:
        """A step was decided and applied."""

    def step_ended(self, now: float) -> None:
        """The oldest step in flight has results, which are not applied yet."""

    def updated(self, now: float) -> None:
        """The results have been applied."""

    def finished(self, request: Request, now: float) -> None:
        """A request has ended."""

    def so_far(self, request: Request, now: float) -> RequestHistory | None:
        """Return the history of a request that has not ended."""


class NoObserver:
    """RequestObserver that records nothing."""

    def added(self, request: Request, predicted_ttft: float | None) -> None: ...
    def preempted(self, request: Request, now: float, *, is_swapped: bool, prices: Prices) -> None: ...
    def admitted(self, request: Request, now: float) -> None: ...
    def decided(self, plan: Plan, running: Sequence[Request], now: float) -> None: ...
    def step_ended(self, now: float) -> None: ...
    def updated(self, now: float) -> None: ...
    def finished(self, request: Request, now: float) -> None: ...
    def so_far(self, request: Request, now: float) -> RequestHistory | None:
        return None
