"""SchedulerConfig: the settings that the core reads. EngineConfig has these fields; the core knows no others."""

from collections.abc import Mapping
from typing import Protocol


class StepLimits(Protocol):
    """Limits of one step."""

    @property
    def num_seqs(self) -> int:
        """Most running requests."""

    @property
    def num_batched_tokens(self) -> int:
        """Most tokens of a step: the token budget."""


class SchedulerConfig(Protocol):
    """Values are checked by the config; names are the command line's flags."""

    @property
    def step_limits(self) -> StepLimits: ...
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
    def enable_prefix_caching(self) -> bool: ...
    @property
    def target_itl_ms(self) -> float | None: ...
