"""EngineConfig: all settings of the engine, those of the extensions too, as wishes; ResolvedConfig: as facts.

Imports no torch.
"""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ..extension import declared, joined
from .engine_settings import EngineSettings

if TYPE_CHECKING:
    EngineConfig = EngineSettings  # the sections are known at run time only
else:
    EngineConfig = joined(EngineSettings, declared(), name="EngineConfig", module=__name__)

# On an H200, 64 sequences of an 8B model reach about 10,000 tokens/s and 256 reach 16,000; chunks of 512 tokens cost a
# fifth of the prefill rate (both estimated).
_NUM_SEQS = {"cpu": 64, "cuda": 256}
_NUM_BATCHED_TOKENS = {"cpu": 512, "cuda": 2048}


@dataclass(frozen=True, kw_only=True)
class ResolvedConfig(EngineConfig):
    """Facts for the wishes of an EngineConfig: no limit, device or policy is None or "auto".

    `dtype`, `max_model_len`, `num_kv_blocks` and `fingerprint` are a model's, so a simulation has none.
    """

    device: str
    max_num_seqs: int
    max_num_batched_tokens: int
    async_scheduling: bool
    max_model_len: int = 0
    fingerprint: str = ""  # the loaded weights'; with other weights a resumed request could go on to other tokens

    def __post_init__(self) -> None:
        """Check nothing: an EngineConfig was checked."""

    @classmethod
    def of(cls, config: EngineConfig, *, device: str, for_streams: bool = False, **facts: Any) -> "ResolvedConfig":
        """Decide for a device: cpu or cuda. `for_streams`: steps are short, unless set otherwise."""
        values = {field.name: getattr(config, field.name) for field in fields(EngineConfig)}
        values |= {"device": device, "scheduling_policy": config.queue_order}
        values["max_num_seqs"] = config.max_num_seqs or _NUM_SEQS[device]
        values["max_num_batched_tokens"] = config.max_num_batched_tokens or _NUM_BATCHED_TOKENS[device]
        if config.async_scheduling is None:
            values["async_scheduling"] = device == "cuda"
        if for_streams:
            values |= config.values_for_streams(device)
        return cls(**values | facts)

    @property
    def most_blocks(self) -> int:
        """Number of blocks that can be of use: every sequence of a step at full length."""
        return self.max_num_seqs * -(-self.max_model_len // self.block_size)
