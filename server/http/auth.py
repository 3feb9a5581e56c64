"""Authentication. Everything needs a key unless it is listed as open; keys are kept as SHA-256 digests only."""

import hmac
from collections.abc import Callable, Iterable, Mapping

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import AuthenticationError, describe
from .keys import digest

# What a load balancer asks. Compared with the path that the router sees, so an odd spelling can only lose access.
OPEN_PATHS = frozenset({"/health", "/ready", "/version"})
NO_OWNER = ""  # the owner of everything on a server without keys
KEY_HEADERS = ("x-api-key", "api-key")  # Anthropic's clients and Azure's, where there is no Authorization: Bearer


class KeyRing:
    """The keys that open this server."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def __repr__(self) -> str:
        return f"KeyRing({len(self._digests)} keys)"

    def owner(self, headers: Mapping[str, str]) -> str:
        """The owner that these headers prove: the key's digest, or NO_OWNER without keys. Raises."""
        if not self._digests:
            return NO_OWNER
        key = _key_in(headers)
        if not key:
            raise AuthenticationError(
                "this server needs an API key: send `Authorization: Bearer KEY` or `x-api-key: KEY`"
            )
        owner = digest(key)
        matches = [hmac.compare_digest(owner, known) for known in self._digests]  # all: in constant time
        if not any(matches):
            raise AuthenticationError("this API key is not known here")
        return owner


def _key_in(headers: Mapping[str, str]) -> str:
    """The key that a request brings; empty if there is none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return next((headers[name].strip() for name in KEY_HEADERS if name in headers), "")


def owner_of(connection: HTTPConnection) -> str:
    """The owner that the middleware found for this request."""
    owner = connection.scope["splitfuse.owner"]
    assert isinstance(owner, str)
    return owner


class RequireKey:
    """ASGI middleware: no key, no answer, but to OPEN_PATHS and what `is_open`."""

    def __init__(self, app: ASGIApp, keys: KeyRing, is_open: Callable[[Scope], bool]) -> None:
        self._app = app
        self._keys = keys
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS and not self._is_open(scope):
            try:
                scope["splitfuse.owner"] = self._keys.owner(HTTPConnection(scope).headers)
            except AuthenticationError as exc:
                await describe(exc).response()(scope, receive, send)
                return
        await self._app(scope, receive, send)
