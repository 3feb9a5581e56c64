"""Ports: protocols that parts and extras implement for the core, which imports neither.

SchedulerConfig      has the settings that the core reads (config/engine_config.py)
Runner, Launcher     compute a batch on a device (execution/runner)
Speculator           drafts tokens (extras/spec_decode)
Pacer                sets the size of steps and the order of prompts by times (extras/deadlines)
OutputBuilder        makes text and deltas of tokens (serving/output_processor.py)
RequestObserver      records the life of each request (extras/inspection/histories.py)
SchedulerListener    receives each call that changes the scheduler (extras/simulation/recording.py)

Speculator, Pacer, RequestObserver and SchedulerListener are advice: these base classes do nothing, and answer where an
extra's method raises (engine/serving/guarded_hook.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ..errors import RequestFailedError
from .batch import Batch, Moves, Progress, RowOutput
from .block_manager import BlockManager
from .outputs import OutputDelta
from .plan import Pace, Plan
from .preemption_costs import PreemptionCosts, Prices
from .request import Request


class SchedulerConfig(Protocol):
    """Settings that the core reads, named like the command line's flags. ResolvedConfig has them."""

    @property
    def max_num_seqs(self) -> int: ...
    @property
    def max_num_batched_tokens(self) -> int: ...
    @property
    def scheduling_policy(self) -> str: ...
    @property
    def batching_policy(self) -> str: ...
    @property
    def long_prefill_token_threshold(self) -> int | None: ...
    @property
    def preemption_mode(self) -> str: ...
    @property
    def tenant_weights(self) -> Mapping[str, float] | None: ...
    @property
    def max_seqs_per_key(self) -> int | None: ...
    @property
    def enable_prefix_caching(self) -> bool: ...


class Runner(Protocol):
    """Device that moves blocks and computes batches. ModelRunner is one; tests and simulations have others."""

    def move(self, moves: Moves) -> None: ...

    def run(self, batch: Batch) -> list[RowOutput]:
        """Return one output per row. A rerun of a row gives an equal output."""


class PendingOutputs(Protocol):
    """Outputs of a launched step."""

    def wait(self) -> list[RowOutput]:
        """Wait for the device and return one output per row. Raises the error of the device."""


class Launcher(Protocol):
    """Queue of work for a device, which runs in order. No call waits for the device."""

    def move(self, moves: Moves) -> None:
        """Queue copies of blocks."""

    def launch(self, batch: Batch) -> PendingOutputs | None:
        """Launch a step. A row may end one token after its request's known tokens, with the token sampled last.

        Return None if another token than the sampled one turns out to stand there: the step must run synchronously.
        """

    def stats(self) -> dict[str, int]:
        """Return the launcher's counters."""

    @property
    def has_idle_work(self) -> bool:
        """True if there is work for times without steps, such as CUDA graphs to capture."""

    def do_idle_work(self) -> None:
        """Do a part of the idle work, which takes about as long as a step. In the thread of the steps."""


class Drafted(NamedTuple):
    """Outcome of one request's draft."""

    num_drafted: int
    num_accepted: int


class Speculator:
    """Drafter for requests that decode. `draft` runs in the step's thread, the rest in the scheduler's."""

    def skips_step(self) -> bool:
        """True if the next step has no drafts and need not be observed. Called once per step."""
        return True

    def choose(self, running: Sequence[Request]) -> dict[Request, int]:
        """Return the number of tokens to draft for each request that decodes, without requests that get none."""
        return {}

    def draft(self, batch: Batch) -> Batch:
        """Return the batch with its drafts filled in, rows of one token first."""
        return batch.with_drafts({})

    def observe(self, batch: Batch, outputs: Sequence[RowOutput], seconds: float) -> list[Drafted]:
        """Learn from a step's outputs and its duration. Return the outcome of each draft."""
        return []

    def forget(self, request: Request) -> None:
        """Note that a request has ended."""

    def forget_ended(self) -> None:
        """Drop the state of ended requests; not while the step's thread drafts."""

    def to_dict(self) -> dict[str, Any] | None:
        """Return counts for /stats, if there are any."""
        return None


class Pacer:
    """Pacer of steps. The base class sets no limits, and leaves the requests in queue order."""

    def note(self, request: Request) -> None:
        """Note a request that was queued, or one that has ended."""

    def pace(self, running: Sequence[Request], waiting: Sequence[Request], now: float) -> Pace:
        """Return the pace of the next step. Changes nothing."""
        return Pace()

    def decided(self, batch: Batch | None, now: float) -> None:
        """Note a step that was decided and applied, or that there is none."""

    def outlook(self, request: Request, running: Sequence[Request], waiting: Sequence[Request]) -> Any:
        """Predict the first token of a request that is not queued yet; None if it has no goal."""
        return None

    def stats(self) -> dict[str, int]:
        """Return counts for /stats."""
        return {}


class Decoded(NamedTuple):
    """Text of a request's new tokens, and its consequences for the request."""

    text: str = ""
    num_dropped: int = 0  # new tokens after the end of the text
    stop: str | None = None  # stop string that was found
    has_failed: bool = False  # a token could not be decoded
    error: RequestFailedError | None = None  # the text's error or the row's


class OutputBuilder(Protocol):
    """Builder of deltas from tokens. It only decides: EngineCore applies stop strings and failures."""

    def add(self, request: Request) -> None:
        """Prepare for the tokens of a request."""

    def forget(self, request: Request) -> None:
        """Drop the state of a request whose last delta has been made."""

    def keep_prompt_logprobs(self, batch: Batch, outputs: Sequence[RowOutput]) -> None:
        """Collect a step's prompt logprobs for the delta with the first token."""

    def decode(self, progress: Progress) -> Decoded:
        """Return the text that is certain after these tokens."""

    def delta(self, progress: Progress, decoded: Decoded) -> OutputDelta:
        """Build the delta of a step, once `decoded` has been applied to the scheduler."""


class RequestObserver:
    """Recorder of each request's life, called beside every change; the writer of `Request.history`."""

    def added(self, request: Request, predicted_ttft: float | None) -> None:
        """Record a request that was queued."""

    def preempted(self, request: Request, now: float, *, is_swapped: bool, prices: Prices, gave_way: bool) -> None:
        """Record a request that is about to lose its blocks. `gave_way`: to a tenant with a smaller share."""

    def admitted(self, request: Request, now: float) -> None:
        """Record a request that runs from now on."""

    def decided(self, plan: Plan, running: Sequence[Request], now: float) -> None:
        """Record a step that was decided and applied."""

    def step_ended(self, now: float) -> None:
        """Record that the oldest step in flight has results, not applied yet."""

    def updated(self, now: float) -> None:
        """Record that the results were applied."""

    def finished(self, request: Request, now: float) -> None:
        """Record the end of a request."""

    def so_far(self, request: Request, now: float) -> Any:
        """Return the history of a request that has not ended."""
        return None


class Decision(NamedTuple):
    """Call of `Scheduler.schedule` and its result. `was_running`: the requests that ran before it."""

    now: float
    pace: Pace
    drafts: Mapping[Request, int] | None
    was_running: Sequence[Request]
    plan: Plan
    batch: Batch | None


class SchedulerState(Protocol):
    """Parts of a scheduler that listeners read."""

    blocks: BlockManager
    costs: PreemptionCosts
    waiting: list[Request]
    running: list[Request]


class SchedulerListener:
    """Receiver of every call from outside that changes a scheduler, after the change."""

    def added(self, request: Request) -> None: ...

    def finished(self, request: Request, *, reason: str, now: float, at_text: bool = False) -> None:
        """Receive the end of a request before the request changes. `at_text`: its text has a stop string."""

    def scheduled(self, scheduler: SchedulerState, decision: Decision) -> None: ...

    def updated(
        self, batch: Batch, outputs: Sequence[RowOutput], progress: Sequence[Progress], *, now: float
    ) -> None: ...
