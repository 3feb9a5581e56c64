"""Settings: EngineConfig as the user gives it. Imports no torch."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .speculative_config import SpeculativeConfig, speculative_config

DEMO_MODEL = "splitfuse-demo-5m"
DEMO_FOLDER = Path(__file__).parent / "demo_model"
DEMO_DRAFT = "demo-draft"  # the demo model's smaller sibling, for --speculative-model

# 221 M model, two cores, eight streams beside 1500-token prompts: P99 gap 327 -> 186 ms, the prompts' first tokens
# after 1.02 s instead of 0.93, the rate of short prompts the same. With 192: 140 ms and 1.02 s.
_CPU_PIECE = 256

_CHOICES: dict[str, tuple[str | None, ...]] = {
    "device": ("auto", "cpu", "cuda"),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "kv_cache_dtype": ("auto", "fp8"),
    "load_format": ("auto", "safetensors", "dummy"),
    "quantization": (None, "int8", "int4"),
    "batching_policy": ("splitfuse", "prefill_first", "decode_first", "static"),
    "scheduling_policy": ("fcfs", "priority", "fair"),
    "preemption_mode": ("auto", "recompute", "swap"),
}


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Everything the engine can be told; names are the command line's flags. Raises ConfigError.

    None means "decide from the model and the machine". `model` None is the bundled demo model, else a folder or hub id.
    """

    model: str | None = None
    served_model_name: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    load_format: str = "auto"
    quantization: str | None = None  # weights in fewer bits, rounded while they load: int8 or int4
    kv_cache_dtype: str = "auto"  # auto: the model's; fp8: e4m3, half of it
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    # Most tokens of one prompt in one step; 0 = the budget is the only limit. None: see `for_streams`.
    long_prefill_token_threshold: int | None = None
    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int | None = None
    num_kv_blocks: int | None = None
    swap_space: float = 0.0  # GiB of host memory for blocks of requests that gave way
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    batching_policy: str = "splitfuse"
    scheduling_policy: str = "fcfs"
    # Of "fair": tokens of one tenant against another's, 1 if not named. May name keys, so it is not shown.
    tenant_weights: dict[str, float] | None = field(default=None, repr=False)
    preemption_mode: str = "auto"
    target_itl_ms: float | None = None  # longest gap between tokens to aim at; each step's budget follows from it
    max_queue_size: int = 1024  # requests waiting; one more is refused with a time to come back
    max_queue_seconds: float | None = None  # the same for the predicted time to a first token
    async_scheduling: bool | None = None  # decide a step while the one before it runs; None = on a GPU
    enforce_eager: bool = False  # no CUDA graphs
    seed: int = 0
    num_threads: int | None = None  # CPU threads of the model; None = the cores this process may use
    log_steps: bool = False
    record: str | None = None  # file for every decision and arrival, for `splitfuse replay`
    chat_template: str | None = None  # a file, or the template itself, instead of the model's own
    speculative_config: dict[str, Any] | None = None
    speculative_model: str | None = None  # short for a speculative_config: "ngram", or a draft model
    num_speculative_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.model is not None and not self.model.strip():
            raise ConfigError("model is an empty string; name a folder or hub id, or leave it out for the demo model")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} {getattr(self, name)!r} is not one of {', '.join(filter(None, choices))}")
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "max_queue_size"):
            _require(self, name, at_least=1)
        for name in ("max_model_len", "num_kv_blocks", "kv_cache_memory_bytes", "num_threads"):
            if getattr(self, name) is not None:
                # A prompt and an answer have a token each at least.
                _require(self, name, at_least=2 if name == "max_model_len" else 1)
        if self.long_prefill_token_threshold is not None:
            _require(self, "long_prefill_token_threshold", at_least=0)
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ConfigError(
                f"gpu_memory_utilization must be above 0 and at most 1, not {self.gpu_memory_utilization}"
            )
        for name in ("target_itl_ms", "max_queue_seconds"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} must be a number above 0, not {value!r}")
        if self.swap_space < 0:
            raise ConfigError(f"swap_space must be a number of GiB of at least 0, not {self.swap_space}")
        if self.preemption_mode == "swap" and not self.swap_space:
            raise ConfigError("preemption_mode swap needs room to swap to: set swap_space to some GiB")
        for tenant, weight in (self.tenant_weights or {}).items():
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
                raise ConfigError(f"tenant_weights: the weight of {tenant!r} must be a number above 0, not {weight!r}")
        if self.tenant_weights and self.scheduling_policy != "fair":
            raise ConfigError("tenant_weights say how tenants share; they need scheduling_policy fair")
        _ = self.speculation  # checks it
        self._refuse_what_is_not_built()

    def _refuse_what_is_not_built(self) -> None:
        if not self.enable_chunked_prefill:
            raise ConfigError("enable_chunked_prefill is always on here: chunks are what splitfuse is about")

    def for_streams(self, device: str) -> "EngineConfig":
        """The settings for people who watch tokens come: on a CPU no prompt keeps them waiting by more than a piece."""
        if self.long_prefill_token_threshold is not None or self.target_itl_ms is not None or device != "cpu":
            return self
        return replace(self, long_prefill_token_threshold=_CPU_PIECE)

    @property
    def speculation(self) -> SpeculativeConfig | None:
        """Who drafts, None if nobody does. Raises ConfigError."""
        return speculative_config(
            self.speculative_config, model=self.speculative_model, num_tokens=self.num_speculative_tokens
        )

    @property
    def model_name(self) -> str:
        """The name under which the model is served."""
        if self.served_model_name:
            return self.served_model_name
        return DEMO_MODEL if self.model is None else self.model

    @property
    def is_demo(self) -> bool:
        """Whether the bundled demo model is served."""
        return self.model is None


def _require(config: EngineConfig, name: str, *, at_least: int) -> None:
    value = getattr(config, name)
    if type(value) is not int or value < at_least:
        raise ConfigError(f"{name} must be an integer of at least {at_least}, not {value!r}")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of the model folder. Raises ConfigError naming the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise ConfigError(f"{path} is missing; is this a Hugging Face model folder?") from exc
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as exc:
        raise ConfigError(f"{path} cannot be read as JSON ({exc}); fetch the file again") from exc
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a JSON object; fetch the file again")
    return value


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold this many tokens."""
    return math.ceil(num_tokens / block_size)


def positive_int(fields: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """The positive integer under `name`; where it is missing or null, `default`. Raises ConfigError."""
    value = fields.get(name)
    value = default if value is None else value
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name} must be a positive integer, not {value!r}")
    return value


def positive_number(fields: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """The finite number above 0 under `name`; where it is missing or null, `default`. Raises ConfigError."""
    value: Any = fields.get(name)
    value = default if value is None else value
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise ConfigError(f"{name} must be a number above 0, not {value!r}")
    return float(value)
