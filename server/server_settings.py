"""ServerSettings: EngineConfig's settings plus those of the server itself. No torch, and no option's settings.

A setting is a flag (`--max-num-seqs`), an environment variable (`SPLITFUSE_MAX_NUM_SEQS`) and a key of the config file;
`commands/settings_sources.py` reads those three. An extension declares its settings in a class derived from this one.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..engine.config import EngineConfig
from ..engine.config.setting import setting, settings_of
from ..engine.errors import ConfigError
from .http.keys import digest

# Forms of the items as browsers send them, and an example.
_FORMS = {
    "allowed_hosts": (r"\*|[a-z0-9._-]+", "a name without scheme and port, such as llm.example.com"),
    "allowed_origins": (r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]+", "an origin such as https://app.example.com"),
}


@dataclass(frozen=True, kw_only=True)
class ServerSettings(EngineConfig):
    """Settings of a server without extensions. Raises ConfigError."""

    host: str = setting("127.0.0.1", help="address to listen on")
    port: int = setting(8000, at_least=0, at_most=65535, help="port to listen on; 0 = any free one")
    uds: str | None = setting(None, help="Unix socket to listen on, in place of --host and --port")
    root_path: str = setting("", help="path below which a proxy shows the server, as /llm")
    ssl_certfile: str | None = setting(None, help="file with the certificate chain in PEM: the server speaks HTTPS")
    ssl_keyfile: str | None = setting(None, help="file with the certificate's key, if it is not in --ssl-certfile")
    api_key: tuple[str, ...] = setting(
        (), repr=False, help="key that requests must bring; may be given more than once (in the variable: with commas)"
    )
    api_key_file: str | None = setting(None, help="file with such keys, one per line; # begins a comment")
    admin_key: tuple[str, ...] = setting(
        (),
        repr=False,
        help="key that may also watch all requests (/metrics, /stats, the engine's view) and change the server, which "
        "other keys then may not; may be given more than once",
    )
    admin_key_file: str | None = setting(None, help="file with such keys, like --api-key-file")
    allowed_hosts: tuple[str, ...] = setting(
        (), help="names of a server without keys beside localhost and its addresses; with commas; * = any"
    )
    allowed_origins: tuple[str, ...] = setting(
        (), help="origins whose web pages may use the server, as https://app.example.com; with commas; * = any"
    )
    strict_fields: bool = setting(False, help="refuse fields that have no effect, and other servers' names")
    max_connections: int = setting(4096, at_least=1, help="most open connections; one address gets half of them")
    result_ttl: float = setting(3600.0, at_least=0, help="seconds that a finished result can be read")
    id_tag: str = setting(
        "", help="beginning of every id, by which a balancer finds the server that has it: letters, digits and -"
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
    max_body_bytes: int = setting(2 * 2**20, at_least=1, help="longest request body; takes KiB, MiB, GiB")
    drain_timeout: float = setting(30.0, at_least=0, help="seconds that running requests get to finish after SIGTERM")
    step_timeout: float | None = setting(
        None, at_least=0, help="end the process when a step takes so many seconds; 0 = never, nothing = learned"
    )
    stream_interval: int = setting(1, at_least=1, help="tokens per stream event after the first")
    metrics_prefix: str = setting("splitfuse:", help="beginning of every metric's name; vllm: suits stock dashboards")
    log_format: str = setting("text", choices=("text", "json"), help="of the log; json: an object per line")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("api_key", "admin_key"):
            if any(not key.strip() or not key.isascii() for key in getattr(self, name)):
                raise ConfigError(f"{name}: a key must be visible ASCII characters; one is empty or holds others")
        _ = self.keys, self.admin_keys, self.hosts, self.origins  # reads the files, and checks the items
        if not re.fullmatch(r"((?!resp$)[A-Za-z0-9][A-Za-z0-9-]{0,31})?", self.id_tag):
            raise ConfigError(f"id_tag {self.id_tag!r} takes up to 32 letters, digits and -, no - first; resp is taken")
        if not re.fullmatch(r"([A-Za-z_:][A-Za-z0-9_:]*)?", self.metrics_prefix):
            raise ConfigError(f"metrics_prefix {self.metrics_prefix!r} takes letters, digits, _ and :, no digit first")

        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ConfigError("ssl_keyfile is the key of a certificate: give --ssl-certfile, too")
        if self.root_path and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", self.root_path):
            raise ConfigError(f"root_path {self.root_path!r} must be as /llm: a / first and none at the end")

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Keys of `api_key` and of `api_key_file`; without any the server asks for none."""
        return self.api_key + _keys_in(self.api_key_file, setting="--api-key-file")

    @property
    def has_several_keys(self) -> bool:
        """True if keys share the server."""
        return len(set(self.keys)) > 1

    @cached_property
    def admin_keys(self) -> tuple[str, ...]:
        """Keys of `admin_key` and of `admin_key_file`."""
        return self.admin_key + _keys_in(self.admin_key_file, setting="--admin-key-file")

    @property
    def hosts(self) -> tuple[str, ...]:
        """Items of `allowed_hosts`, in lower case."""
        return _parts("allowed_hosts", self.allowed_hosts)

    @property
    def origins(self) -> tuple[str, ...]:
        """Items of `allowed_origins`, in lower case."""
        return _parts("allowed_origins", self.allowed_origins)

    @property
    def is_local(self) -> bool:
        """True if only this machine reaches the server."""
        from ..client.hosts import is_loopback  # here: brings httpx, 0.1 s

        return is_loopback(self.host)

    @property
    def queue_order(self) -> str:
        """Scheduling policy; "auto" is fair with several keys."""
        return "fair" if self.scheduling_policy == "auto" and self.has_several_keys else super().queue_order

    @property
    def has_durable_results(self) -> bool:
        """True if results outlive the process."""
        return False

    @property
    def has_shared_results(self) -> bool:
        """True if results are kept in a database that several servers share."""
        return False

    def engine_config(self) -> EngineConfig:
        """The engine's share of the settings. It knows keys by their digests only."""
        declared = settings_of(EngineConfig)
        values = {name: getattr(self, name) for name in declared}
        values["scheduling_policy"] = self.queue_order
        for name, by_tenant in values.items():
            if declared[name].by_tenant and by_tenant:
                values[name] = {digest(key) if key in self.keys else key: value for key, value in by_tenant.items()}
        return EngineConfig(**values)


def _keys_in(path: str | None, *, setting: str) -> tuple[str, ...]:
    if path is None:
        return ()
    from ..engine.private_file import read_keys

    return read_keys(Path(path), setting=setting)


def _parts(name: str, values: tuple[str, ...]) -> tuple[str, ...]:
    """Split lists with commas into items, in lower case. Raises ConfigError."""
    pattern, example = _FORMS[name]
    parts = tuple(part.strip().lower() for value in values for part in value.split(",") if part.strip())
    for part in parts:
        if not re.fullmatch(pattern, part):
            raise ConfigError(f"{name}: {part!r} is not {example}, or *")
    return parts
