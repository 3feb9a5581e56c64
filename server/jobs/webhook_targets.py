"""WebhookTargets: URLs that the operator lets the server notify when a result has ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...engine.errors import InvalidRequestError


@dataclass(frozen=True)
class WebhookTargets:
    """URLs by the names that requests give, and the secret that signs messages to them."""

    urls: Mapping[str, str] = field(default_factory=dict)
    secret: bytes = field(default=b"", repr=False)

    def check(self, name: str | None, *, is_kept: bool) -> None:
        """Raise InvalidRequestError unless this is None, or one of the names in a request whose result is kept."""
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
