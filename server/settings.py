"""Settings: EngineConfig's settings plus what the server itself needs. No torch.

A setting is a flag (`--max-num-seqs`), an environment variable (`SPLITFUSE_MAX_NUM_SEQS`) and a key of the config file;
`settings_sources.py` reads those three.
"""

import dataclasses
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..engine.config import EngineConfig
from ..engine.config.setting import setting
from ..engine.errors import ConfigError
from ..engine.extras.chat.reasoning_parser import REASONING_FORMATS
from ..engine.extras.chat.tool_parsers.registry import TOOL_FORMATS
from .extras.durable.webhook_targets import WebhookTargets
from .http.keys import digest, read_key_file

# Their items as browsers send them, and an example.
_FORMS = {
    "allowed_hosts": (r"\*|[a-z0-9._-]+", "a name without scheme and port, such as llm.example.com"),
    "allowed_origins": (r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]+", "an origin such as https://app.example.com"),
}


@dataclass(frozen=True, kw_only=True)
class Settings(EngineConfig):
    """Everything that `splitfuse serve` can be told. Raises ConfigError."""

    host: str = setting("127.0.0.1", help="address to listen on")
    port: int = setting(8000, at_least=0, at_most=65535, help="port to listen on; 0 = any free one")
    replicas: int | None = setting(
        None,
        at_least=1,
        help="whole servers behind one port, by HAProxy; each has a GPU, or its share of the cores",
    )
    ray_address: str | None = setting(
        None,
        help="Ray cluster that runs the replicas: auto, HOST:6379, or local, a new one; nothing = this machine",
    )
    api_key: tuple[str, ...] = setting(
        (), repr=False, help="key that requests must bring; may be given more than once (in the variable: with commas)"
    )
    api_key_file: str | None = setting(None, help="file with such keys, one per line; # begins a comment")
    allowed_hosts: tuple[str, ...] = setting(
        (), help="names of a server without keys beside localhost and its addresses; with commas; * = any"
    )
    allowed_origins: tuple[str, ...] = setting(
        (), help="origins whose web pages may use the server, as https://app.example.com; with commas; * = any"
    )
    strict_fields: bool = setting(
        False, help="refuse fields that are known but have no effect, and other servers' names"
    )
    max_connections: int = setting(4096, at_least=1, help="most open connections; one address gets half of them")
    result_ttl: float = setting(3600.0, at_least=0, help="seconds that a finished result can be read")
    results: str = setting(
        "memory",
        repr=False,
        help="where results are kept: memory, or a file, from which they and unfinished jobs survive a crash, or "
        "postgresql://…, which servers share",
    )
    results_sync: str = setting(
        "full",
        choices=("full", "normal"),
        help="full: what was told survives a power cut; normal: only the death of the process, but commits are cheap",
    )
    results_lease: float = setting(
        15.0, at_least=0.5, help="seconds without a sign of life after which other servers take a server's jobs over"
    )
    results_url: str = setting("", help="where other servers on the database reach this one, default http://HOST:PORT")
    results_key_file: str | None = setting(
        None,
        repr=False,
        help="file with a key, 32 bytes as base64, that encrypts results on disk; needs pip install cryptography",
    )
    id_tag: str = setting(
        "", help="beginning of every id, by which a balancer finds the server that has it: letters, digits and -"
    )
    webhook_targets: tuple[str, ...] = setting(
        (),
        repr=False,
        help="where the ends of results may be told, as NAME=https://…; more than once; needs --results on disk",
    )
    webhook_secret_file: str | None = setting(
        None, repr=False, help="file with the secret that signs webhooks: whsec_ and base64"
    )
    max_results: int = setting(10_000, at_least=1, help="results kept at once")
    max_unfinished_per_key: int | None = setting(
        None, at_least=1, help="unfinished results of one key; one more is answered 429"
    )
    max_result_bytes_per_key: int | None = setting(
        None,
        at_least=1,
        help="bytes of all results of one key, where they are kept; beyond it 429; takes KiB, MiB, GiB",
    )
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
    step_timeout: float | None = setting(
        None, at_least=0, help="end the process when a step takes so many seconds; 0 = never, nothing = learned"
    )
    stream_interval: int = setting(1, at_least=1, help="tokens per stream event after the first")
    tool_call_parser: str = setting(
        "auto", choices=("auto", "none", *TOOL_FORMATS), help="how tool calls look; auto: as in the chat template"
    )
    reasoning_parser: str = setting(
        "auto",
        choices=("auto", "none", *REASONING_FORMATS),
        help="how reasoning looks; think: <think>…</think>; auto: as in the chat template",
    )
    ollama_api: bool = setting(False, help="serve Ollama's API too, under /api")
    page: bool = setting(True, help="serve the page that shows the engine at work, at /")
    metrics_prefix: str = setting("splitfuse:", help="beginning of every metric's name; vllm: suits stock dashboards")
    request_log: bool = setting(True, help="log one line per request when it ends, without its texts")
    log_format: str = setting("text", choices=("text", "json"), help="of what is logged; json: an object per line")
    otlp_traces_endpoint: str | None = setting(
        None, help="where a span per request is sent by OTLP over HTTP, as http://localhost:4318/v1/traces"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(not key.strip() or not key.isascii() for key in self.api_key):
            raise ConfigError("api_key: a key must be visible ASCII characters; one is empty or holds others")
        _ = self.keys  # reads the file
        for name, form in _FORMS.items():
            vars(self)[name] = _parts(name, getattr(self, name), form)
        if self.webhooks.urls and self.results == "memory":
            raise ConfigError(
                "--webhook-targets needs --results FILE or postgresql://…, where what is to be told is kept"
            )
        if self.results_key_file is not None and self.results == "memory":
            raise ConfigError("--results-key-file needs --results FILE or postgresql://…, which it encrypts")
        if self.ray_address is not None and self.replicas is None:
            raise ConfigError("--ray-address says where replicas run: give --replicas N, too")
        if not re.fullmatch(r"((?!resp$)[A-Za-z0-9][A-Za-z0-9-]{0,31})?", self.id_tag):
            raise ConfigError(f"id_tag {self.id_tag!r} takes up to 32 letters, digits and -, no - first; resp is taken")
        if not re.fullmatch(r"([A-Za-z_:][A-Za-z0-9_:]*)?", self.metrics_prefix):
            raise ConfigError(f"metrics_prefix {self.metrics_prefix!r} takes letters, digits, _ and :, no digit first")
        if self.has_shared_results and not self.results_url and self.host in ("0.0.0.0", "::"):
            raise ConfigError(
                f"--results postgresql://… with --host {self.host}: other servers must know where to reach this one; "
                "give --results-url http://ITS-NAME:PORT"
            )

    @property
    def has_shared_results(self) -> bool:
        """Whether results are kept in a database that several servers share."""
        return self.results.startswith(("postgresql://", "postgres://"))

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Those of `api_key` and of `api_key_file`; without any the server asks for none."""
        return self.api_key + (() if self.api_key_file is None else read_key_file(Path(self.api_key_file)))

    @cached_property
    def webhooks(self) -> WebhookTargets:
        """Where the ends of results may be told."""
        return WebhookTargets.read(self.webhook_targets, self.webhook_secret_file)

    def engine_config(self) -> EngineConfig:
        """The engine's share of the settings. It knows keys by their digests only."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(EngineConfig)}
        if self.tenant_weights:
            values["tenant_weights"] = {
                digest(name) if name in self.keys else name: weight for name, weight in self.tenant_weights.items()
            }
        return EngineConfig(**values)


def _parts(name: str, values: tuple[str, ...], form: tuple[str, str]) -> tuple[str, ...]:
    """The items of these lists with commas, in lower case. Raises ConfigError."""
    parts = tuple(part.strip().lower() for value in values for part in value.split(",") if part.strip())
    for part in parts:
        if not re.fullmatch(form[0], part):
            raise ConfigError(f"{name}: {part!r} is not {form[1]}, or *")
    return parts
