"""Settings of results that outlive the process: the store, webhooks as NAME=URL, and the secret that signs messages."""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ....engine.config.setting import setting
from ....engine.errors import ConfigError
from ....engine.private_file import check_secret
from ...extension import has_extension
from ...jobs.webhook_targets import WebhookTargets
from ...server_settings import ServerSettings

_FORM = re.compile(r"([A-Za-z0-9_-]{1,64})=(https?://[^\s/]+\S*)")
_SECRET_PREFIX = "whsec_"
_SECRET_BYTES = range(24, 65)  # as Standard Webhooks asks for


def read_targets(targets: Sequence[str], secret_file: str | None) -> WebhookTargets:
    """Read NAME=URL settings and the file with the secret. Raises ConfigError."""
    forms = [_FORM.fullmatch(target.strip()) for target in targets]
    for target, form in zip(targets, forms, strict=True):
        if form is None:
            raise ConfigError(f"--webhook-targets {target!r} is not NAME=URL, such as ops=https://example.com/done")
    return WebhookTargets({form[1]: form[2] for form in forms if form}, _read_secret(secret_file))


def _read_secret(path: str | None) -> bytes:
    if path is None:
        raise ConfigError("--webhook-targets needs --webhook-secret-file, a file that holds whsec_ and base64")
    check_secret(Path(path), setting="--webhook-secret-file")
    try:
        text = Path(path).read_text(encoding="ascii").strip()
        secret = base64.b64decode(text.removeprefix(_SECRET_PREFIX), validate=True)
    except OSError as exc:
        raise ConfigError(f"--webhook-secret-file {path}: cannot be read ({exc.strerror})") from exc
    except ValueError:  # not ASCII, or not base64
        text, secret = "", b""
    if not text.startswith(_SECRET_PREFIX) or len(secret) not in _SECRET_BYTES:
        raise ConfigError(
            f"--webhook-secret-file {path} must hold whsec_ and 24 to 64 bytes in base64: "
            "python -c 'import base64, secrets; print(\"whsec_\" + base64.b64encode(secrets.token_bytes(32)).decode())'"
        )
    return secret


@dataclass(frozen=True, kw_only=True)
class DurableSettings(ServerSettings):
    """Place of kept results, and webhooks that tell of their ends."""

    results: str = setting(
        "memory",
        repr=False,
        help="where results are kept: memory, or a file, from which they and unfinished jobs survive a crash, or "
        "postgresql://…, which servers share",
    )
    results_sync: str = setting(
        "full",
        choices=("full", "normal"),
        help="full: delivered events survive a power cut; normal: only a crash of the process, with cheaper commits",
    )
    webhook_targets: tuple[str, ...] = setting(
        (),
        repr=False,
        help="where the ends of results may be POSTed, as NAME=https://…; more than once; needs --results on disk",
    )
    webhook_secret_file: str | None = setting(
        None, repr=False, help="file with the secret that signs webhooks: whsec_ and base64"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.webhooks.urls and self.results == "memory":
            raise ConfigError("--webhook-targets needs --results FILE or postgresql://…, which keeps unsent messages")
        if self.has_shared_results and not has_extension("shared"):
            raise ConfigError("--results postgresql://… needs server/results/shared, which this installation lacks")

    @property
    def has_durable_results(self) -> bool:
        """True if results outlive the process."""
        return self.results != "memory"

    @property
    def has_shared_results(self) -> bool:
        """True if results are kept in a database that several servers share."""
        return self.results.startswith(("postgresql://", "postgres://"))

    @cached_property
    def webhooks(self) -> WebhookTargets:
        """Targets that may be told of the ends of results."""
        if not self.webhook_targets:
            return WebhookTargets()

        return read_targets(self.webhook_targets, self.webhook_secret_file)
