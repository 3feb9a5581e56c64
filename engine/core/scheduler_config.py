"""SchedulerConfig: the settings that the core reads. EngineConfig has these fields; the core knows no others."""

from collections.abc import Mapping
from typing import Protocol


class StepLimits(Protocol):
    """Limits of one step."""

    @property
    def num_seqs(self) -> int:
        """Largest number of running requests."""

    @property
    def num_batched_tokens(self) -> int:
        """Largest number of tokens: the token budget."""


class SchedulerConfig(Protocol):
    """Settings of the core, named like the command line's flags. The config checks their values."""

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
