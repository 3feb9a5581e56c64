"""Settings: EngineConfig's settings plus what the server itself needs. No torch.

A setting is a flag (`--max-num-seqs`), an environment variable (`SPLITFUSE_MAX_NUM_SEQS`) and a key of the config file;
`settings_sources.py` reads those three.
"""

import dataclasses
import re
from dataclasses import dataclass

from ..engine.chat.tool_parsers.registry import TOOL_FORMATS
from ..engine.config import EngineConfig
from ..engine.config.setting import setting
from ..engine.errors import ConfigError
from .http.keys import digest


@dataclass(frozen=True, kw_only=True)
class Settings(EngineConfig):
    """Everything that `splitfuse serve` can be told. Raises ConfigError."""

    host: str = setting("127.0.0.1", help="address to listen on")
    port: int = setting(8000, at_least=0, at_most=65535, help="port to listen on; 0 = any free one")
    api_key: tuple[str, ...] = setting(
        (), repr=False, help="key that requests must bring; may be given more than once (in the variable: with commas)"
    )
    result_ttl: float = setting(3600.0, at_least=0, help="seconds that a finished result can be read")
    results: str = setting(
        "memory", help="where results are kept: memory, or a file, from which they and unfinished jobs survive a crash"
    )
    results_sync: str = setting(
        "full",
        choices=("full", "normal"),
        help="full: what was told survives a power cut; normal: only the death of the process, but commits are cheap",
    )
    max_results: int = setting(10_000, at_least=1, help="results kept at once")
    max_result_bytes: int = setting(256 * 2**20, at_least=1, help="memory for kept results; takes KiB, MiB, GiB")
    max_body_bytes: int = setting(2**20, at_least=1, help="longest request body; takes KiB, MiB, GiB")
    max_file_bytes: int = setting(64 * 2**20, at_least=1, help="longest file for batches; takes KiB, MiB, GiB")
    max_total_file_bytes: int = setting(
        512 * 2**20, at_least=1, help="all files for batches together, in memory or on disk; takes KiB, MiB, GiB"
    )
    file_ttl: float = setting(30 * 86_400.0, at_least=0, help="seconds that files and batches are kept")
    max_batch_lines: int = setting(50_000, at_least=1, help="requests in one batch")
    max_batch_requests: int = setting(16, at_least=1, help="requests of batches that are in the engine at once")
    drain_timeout: float = setting(30.0, at_least=0, help="seconds that running requests get to finish after SIGTERM")
    stream_interval: int = setting(1, at_least=1, help="tokens per stream event after the first")
    tool_call_parser: str = setting(
        "auto", choices=("auto", "none", *TOOL_FORMATS), help="how tool calls look; auto: as in the chat template"
    )
    reasoning_parser: str = setting(
        "auto",
        choices=("auto", "think", "none"),
        help="how reasoning looks; think: <think>…</think>; auto: as in the chat template",
    )
    metrics_prefix: str = setting("splitfuse:", help="beginning of every metric's name; vllm: suits stock dashboards")

    def __post_init__(self) -> None:
        super().__post_init__()
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
