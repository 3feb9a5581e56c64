"""Settings: the one place where a setting exists. EngineConfig's fields plus what the server itself needs; no torch.

A field is a flag (`--max-num-seqs`), an environment variable (`SPLITFUSE_MAX_NUM_SEQS`) and a key of the config file;
`sources.py` reads those three.
"""

import dataclasses
import math
import re
from dataclasses import dataclass, field

from ..engine.config import EngineConfig
from ..engine.errors import ConfigError
from ..engine.structured_output.answer_grammar import STYLES
from .http.keys import digest

_CHOICES = {"tool_call_parser": ("auto", "none", *STYLES), "reasoning_parser": ("auto", "think", "none")}


@dataclass(frozen=True, kw_only=True)
class Settings(EngineConfig):
    """Everything that `splitfuse serve` can be told. Raises ConfigError."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: tuple[str, ...] = field(default=(), repr=False)
    result_ttl: float = 3600.0
    max_results: int = 10_000
    max_result_bytes: int = 256 * 2**20
    max_body_bytes: int = 2**20
    drain_timeout: float = 30.0
    stream_interval: int = 1
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    metrics_prefix: str = "splitfuse:"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_results", "max_result_bytes", "max_body_bytes", "stream_interval"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("result_ttl", "drain_timeout"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ConfigError(f"{name} must be a number of seconds of at least 0, not {getattr(self, name)}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} {getattr(self, name)!r} is not one of {', '.join(choices)}")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be between 0 (any free one) and 65535, not {self.port}")
        if any(not key.strip() or not key.isascii() for key in self.api_key):
            raise ConfigError("api_key: a key must be visible ASCII characters; one is empty or holds others")
        if not re.fullmatch(r"([A-Za-z_:][A-Za-z0-9_:]*)?", self.metrics_prefix):
            raise ConfigError(f"metrics_prefix {self.metrics_prefix!r} takes letters, digits, _ and :, no digit first")

    def engine_config(self) -> EngineConfig:
        """The engine's share of the settings. It knows keys by their digests only."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(EngineConfig)}
        if self.tenant_weights:
            values["tenant_weights"] = {
                digest(name) if name in self.api_key else name: weight for name, weight in self.tenant_weights.items()
            }
        return EngineConfig(**values)


# One line of help per setting; the flag's help adds the environment variable and the default.
HELP = {
    "model": "Hugging Face id or local folder; nothing = the bundled demo model",
    "served_model_name": "name under which the model is served",
    "device": "auto, cpu or cuda",
    "dtype": "auto, float32, bfloat16 or float16",
    "load_format": "auto, safetensors or dummy (random weights)",
    "quantization": "round weights to int8 or int4 as they load",
    "kv_cache_dtype": "auto (the model's) or fp8 (half the memory and traffic; CUDA)",
    "max_model_len": "longest prompt plus output, in tokens; less needs less memory",
    "max_num_seqs": "most sequences in one step",
    "max_num_batched_tokens": "token budget of one step",
    "long_prefill_token_threshold": "most tokens of one prompt in one step; 0 = all; nothing = 256 on a CPU",
    "block_size": "tokens in one block of the KV cache",
    "gpu_memory_utilization": "share of the GPU's memory to use",
    "kv_cache_memory_bytes": "size of the KV cache; takes KiB, MiB, GiB",
    "num_kv_blocks": "number of blocks in the KV cache; overrides the measured size",
    "swap_space": "GiB of host memory for swapped-out blocks",
    "enable_prefix_caching": "reuse the blocks of a shared prompt beginning",
    "enable_chunked_prefill": "split long prompts over steps; always on",
    "batching_policy": "who shares a step: splitfuse, prefill_first, decode_first or static",
    "scheduling_policy": "who comes first: fcfs, priority or fair (between keys, or users)",
    "tenant_weights": 'shares of fair, as a JSON object: {"USER or API key": 2}; 1 for who is not named',
    "preemption_mode": "how a sequence gives way: auto, recompute or swap",
    "target_itl_ms": "longest gap between tokens to aim at, in ms; sets each step's budget",
    "max_queue_seconds": "refuse (429) when the predicted time to a first token is longer",
    "max_queue_size": "requests that may wait; one more is answered 429",
    "async_scheduling": "decide a step while the one before it runs; nothing = on a GPU",
    "enforce_eager": "run without CUDA graphs",
    "seed": "seed of requests that bring none",
    "num_threads": "CPU threads of the model; nothing = the cores of this process",
    "chat_template": "file with a chat template, or the template itself, instead of the model's own",
    "log_steps": "print one line per step",
    "record": "write every decision and arrival to this file, for `splitfuse replay`",
    "speculative_config": """speculative decoding, as a JSON object: {"method": "ngram"} or {"model": "FOLDER"}""",
    "speculative_model": "short for it: ngram, or the draft model's id or folder (the demo model's: demo-draft)",
    "num_speculative_tokens": "most tokens to draft at once",
    "host": "address to listen on",
    "port": "port to listen on; 0 = any free one",
    "api_key": "key that requests must bring; may be given more than once (in the variable: with commas)",
    "result_ttl": "seconds that a finished result can be read",
    "max_results": "results kept at once",
    "max_result_bytes": "memory for kept results; takes KiB, MiB, GiB",
    "max_body_bytes": "longest request body; takes KiB, MiB, GiB",
    "drain_timeout": "seconds that running requests get to finish after SIGTERM",
    "stream_interval": "tokens per stream event after the first",
    "tool_call_parser": "how calls of tools look: hermes, llama3_json, none, or auto (the chat template shows it)",
    "reasoning_parser": "how reasoning looks: think (<think>…</think>), none, or auto (the chat template shows it)",
    "metrics_prefix": "beginning of every metric's name; vllm: suits stock dashboards",
}
