"""Webhook targets that the operator allows, and the secret that signs messages to them."""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from ..engine.errors import ConfigError, InvalidRequestError

_FORM = re.compile(r"([A-Za-z0-9_-]{1,64})=(https?://[^\s/]+\S*)")
_SECRET_PREFIX = "whsec_"
_SECRET_BYTES = range(24, 65)  # limits of Standard Webhooks


@dataclass(frozen=True)
class WebhookTargets:
    """URLs by the names that requests use."""

    urls: Mapping[str, str] = field(default_factory=dict)
    secret: bytes = field(default=b"", repr=False)

    @classmethod
    def read(cls, targets: Sequence[str], secret_file: str | None) -> Self:
        """Parse the targets, NAME=URL each, and read the secret. Raises ConfigError."""
        if not targets:
            return cls()
        forms = [_FORM.fullmatch(target.strip()) for target in targets]
        for target, form in zip(targets, forms, strict=True):
            if form is None:
                raise ConfigError(f"--webhook-targets {target!r} is not NAME=URL, such as ops=https://example.com/done")
        return cls({form[1]: form[2] for form in forms if form}, _read_secret(secret_file))

    def check(self, name: str | None, *, is_kept: bool) -> None:
        """Raise InvalidRequestError unless the name is None, or is known and the request's result is kept."""
        if name is not None and not is_kept:
            raise InvalidRequestError(
                "webhook goes with a result that is kept on disk: without stream, with durable or with store",
                param="webhook",
            )
        if name is not None and name not in self.urls:
            names = ", ".join(self.urls) or "none; they are named with --webhook-targets"
            raise InvalidRequestError(
                f"webhook {name[:64]!r} is no target of this server; it has {names}", param="webhook"
            )


def _read_secret(path: str | None) -> bytes:
    if path is None:
        raise ConfigError("--webhook-targets needs --webhook-secret-file, a file that holds whsec_ and base64")
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
