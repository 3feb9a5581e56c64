"""Webhook settings: targets as NAME=URL, and the file with the secret that signs messages."""

import base64
import re
from collections.abc import Sequence
from pathlib import Path

from ....engine.errors import ConfigError
from ....engine.private_file import check_secret
from ...jobs.webhook_targets import WebhookTargets

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
