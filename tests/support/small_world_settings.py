"""Settings of small worlds: a few prompts, a few blocks, and the numbers of events that may happen."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from splitfuse.engine.core.sampling_params import SamplingParams


@dataclass(frozen=True)
class Prompt:
    """Prompt that may arrive `count` times, under names such as a0 and a1."""

    token_ids: tuple[int, ...]
    max_tokens: int
    count: int = 1
    n: int = 1
    tenant: str = ""
    priority: int = 0
    is_background: bool = False
    timeout_ms: int | None = None
    max_queue_ms: int | None = None
    prompt_logprobs: int | None = None

    def params(self) -> SamplingParams:
        """Return the parameters of its requests."""
        return SamplingParams(
            max_tokens=self.max_tokens, n=self.n, priority=self.priority, is_background=self.is_background,
            timeout_ms=self.timeout_ms, max_queue_ms=self.max_queue_ms, prompt_logprobs=self.prompt_logprobs,
        )  # fmt: skip


@dataclass(frozen=True)
class SmallSettings:
    """Settings of one small world; the SchedulerConfig of its core.

    `prompts` by name, of one letter. `events`: how often each may happen: abort, fail (a row), lost (a step that ran),
    nostart (a step that could not be launched), stop (an end token), text (a stop string), weights (a change of them),
    tick (a second goes by).
    """

    prompts: Mapping[str, Prompt]
    events: Mapping[str, int] = field(default_factory=dict)
    num_blocks: int = 4
    block_size: int = 2
    num_host_blocks: int = 0
    steps_in_flight: int = 1
    max_drafts: int = 0
    max_num_seqs: int = 2
    max_num_batched_tokens: int = 4
    scheduling_policy: str = "fcfs"
    batching_policy: str = "splitfuse"
    long_prefill_token_threshold: int | None = None
    preemption_mode: str = "recompute"
    tenant_weights: Mapping[str, float] | None = None
    max_seqs_per_key: int | None = None
    enable_prefix_caching: bool = True
    states: Mapping[str, int] | None = None  # of a model with recurrent layers: sizes of StateSpec
    table = "WORLDS"

    def open(self) -> Any:
        """Return the world, and the memory of its states."""
        from small_world import SmallWorld
        from small_world_state import Memory

        world = SmallWorld(self)
        return world, Memory(world)


_EVENTS = {"abort": 1, "fail": 1, "lost": 1, "stop": 1, "text": 1}
_TWO = SmallSettings({"a": Prompt((1, 2, 3), 3), "b": Prompt((1, 2, 4, 5), 3)}, _EVENTS)
_LONG = {"a": Prompt((1, 2, 3), 3), "b": Prompt((1, 2, 4, 5), 5)}
_TENANTS = {"a": Prompt((1, 2, 3), 2, count=2, tenant="ann"), "b": Prompt((1, 2, 4), 2, tenant="ben")}
_FORK = {"a": Prompt((1, 2, 3, 4), 3, n=2), "b": Prompt((1, 2, 3), 2)}
_AHEAD = replace(_TWO, steps_in_flight=2, events={"abort": 1, "fail": 1, "lost": 1, "stop": 1})
_SWAP_AHEAD: dict[str, Any] = {"steps_in_flight": 2, "num_host_blocks": 3, "preemption_mode": "swap"}
_FAIR: dict[str, Any] = {"scheduling_policy": "fair", "tenant_weights": {"ben": 2.0}}
_SCORED = {"a": Prompt((1, 2, 3, 4), 2, prompt_logprobs=0), "b": Prompt((1, 2, 3, 4, 5), 3, prompt_logprobs=0)}
_TIMED = {"a": Prompt((1, 2, 3), 3, timeout_ms=2000), "b": Prompt((1, 2, 4, 5), 3, max_queue_ms=1000)}
_URGENT = {"a": Prompt((1, 2, 3), 3, priority=1), "b": Prompt((1, 2), 3), "c": Prompt((1, 2, 4), 2, is_background=True)}

# Worlds that are explored whole.
WHOLE: dict[str, SmallSettings] = {
    "recompute": _TWO,
    "equal": replace(_TWO, prompts={"a": Prompt((1, 2, 3), 3, count=2)}),
    "swap": replace(_TWO, prompts=_LONG, num_host_blocks=3, preemption_mode="swap"),
    "ahead": _AHEAD,
    "fork": replace(_TWO, prompts=_FORK, max_num_seqs=3),
    "fork ahead": replace(_TWO, prompts={"a": _FORK["a"]}, events={**_EVENTS, "nostart": 1}, **_SWAP_AHEAD),
    "drafts": replace(_TWO, max_drafts=2, max_num_batched_tokens=6),
    "deadlines": replace(_TWO, prompts=_TIMED, events={"tick": 3, "abort": 1}),
    "deadlines ahead": replace(_TWO, prompts=_TIMED, events={"tick": 2}, steps_in_flight=2),
    "fair": replace(_TWO, prompts=_TENANTS, events={"abort": 1, "stop": 1}, **_FAIR),
    "fair ahead": replace(_TWO, prompts=_TENANTS, events={"abort": 1}, steps_in_flight=2, **_FAIR),
    "priority": replace(_TWO, prompts=_URGENT, scheduling_policy="priority", events={"abort": 1, "stop": 1}),
    "logprobs ahead": replace(_TWO, prompts=_SCORED, events={"abort": 1, "fail": 1, "lost": 1}, **_SWAP_AHEAD),
    "logprobs": replace(_TWO, prompts=_SCORED, events={"lost": 1, "weights": 1}, max_num_batched_tokens=3),
    "weights": replace(_TWO, num_host_blocks=3, preemption_mode="swap", events={"abort": 1, "weights": 1}),
}

# Worlds of a model with recurrent layers, whose slots are in use, kept as checkpoints, on the host or free.
_SLOTS = {"num_checkpoints": 3, "grid": 2}
_TURNS = {"a": Prompt((1, 2, 3, 4, 5), 3), "b": Prompt((1, 2, 3, 4, 6), 2)}
_NEXT = {"a": Prompt((1, 2, 3, 4, 5), 4), "b": Prompt((1, 2, 3, 4, 5, 100, 101), 2)}  # b has a's first outputs
HYBRID: dict[str, SmallSettings] = {
    "states": replace(_TWO, prompts=_TURNS, num_blocks=5, states=_SLOTS),
    "states turns": replace(_TWO, prompts=_NEXT, num_blocks=6, states={"num_checkpoints": 16, "grid": 2}),
    "states swap": replace(WHOLE["swap"], states={**_SLOTS, "num_host": 1}),
    "states fork": replace(WHOLE["fork"], states=_SLOTS),
    "states drafts": replace(WHOLE["drafts"], states={**_SLOTS, "max_drafts": 2}),
    "states ahead": replace(_AHEAD, prompts=_TURNS, num_blocks=5, states=_SLOTS),
}

_THREE = {"a": Prompt((1, 2, 3), 3, count=2), "b": Prompt((1, 2, 4, 5), 4)}
_PAIRS = {"a": Prompt((1, 2, 3), 3, count=2, tenant="ann"), "b": Prompt((1, 2, 3), 4, n=2, tenant="ben")}
_MOST = {"abort": 2, "fail": 1, "lost": 1, "stop": 2, "text": 1, "nostart": 1}
_SIX = SmallSettings(_THREE, _MOST, num_blocks=6, max_num_seqs=3, num_host_blocks=4, preemption_mode="swap")

# Worlds that are explored until the time is over; the first five end before.
LARGE: dict[str, SmallSettings] = {
    "whole prompts": replace(_SIX, batching_policy="prefill_first"),
    "decodes first": replace(_SIX, batching_policy="decode_first", long_prefill_token_threshold=2),
    "three": _SIX,
    "three drafts": replace(
        _SIX, max_drafts=2, max_num_batched_tokens=6, num_host_blocks=0, preemption_mode="recompute"
    ),
    "static": replace(_SIX, batching_policy="static", prompts=_PAIRS),
    "three ahead": replace(_SIX, steps_in_flight=2),
    "two tenants": replace(_SIX, prompts=_PAIRS, scheduling_policy="fair"),
    "two tenants ahead": replace(_SIX, prompts=_PAIRS, scheduling_policy="fair", steps_in_flight=2),
    "weights ahead": replace(_SIX, steps_in_flight=2, events={**_MOST, "weights": 1}),
    "all": replace(_SIX, prompts=_PAIRS, steps_in_flight=2, max_drafts=2, events={**_MOST, "weights": 1}),
}
WORLDS = {**WHOLE, **HYBRID, **LARGE}
