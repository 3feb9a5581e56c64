"""Authentication. Everything needs a key unless it is listed as open; keys are kept as SHA-256 digests only."""

import hmac
from collections.abc import Callable, Iterable

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import AuthenticationError, describe
from .keys import digest

# What a load balancer asks. Compared with the path that the router sees, so an odd spelling can only lose access.
OPEN_PATHS = frozenset({"/health", "/ready", "/version"})
NO_OWNER = ""  # the owner of everything on a server without keys


class KeyRing:
    """The keys that open this server."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def __repr__(self) -> str:
        return f"KeyRing({len(self._digests)} keys)"

    def owner(self, authorization: str | None) -> str:
        """The owner that this `Authorization` header proves: the key's digest, or NO_OWNER without keys. Raises."""
        if not self._digests:
            return NO_OWNER
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise AuthenticationError("this server needs an API key: send `Authorization: Bearer KEY`")
        owner = digest(key.strip())
        matches = [hmac.compare_digest(owner, known) for known in self._digests]  # all: in constant time
        if not any(matches):
            raise AuthenticationError("this API key is not known here")
        return owner


def owner_of(connection: HTTPConnection) -> str:
    """The owner that the middleware found for this request."""
    owner = connection.scope["splitfuse.owner"]
    assert isinstance(owner, str)
    return owner


def is_never_open(_scope: Scope) -> bool:
    """Nothing needs no key."""
    return False


class RequireKey:
    """ASGI middleware: no key, no answer, but to OPEN_PATHS and what `is_open`."""

    def __init__(self, app: ASGIApp, keys: KeyRing, is_open: Callable[[Scope], bool] = is_never_open) -> None:
        self._app = app
        self._keys = keys
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS and not self._is_open(scope):
            try:
                scope["splitfuse.owner"] = self._keys.owner(HTTPConnection(scope).headers.get("authorization"))
            except AuthenticationError as exc:
                await describe(exc).response()(scope, receive, send)
                return
        await self._app(scope, receive, send)
