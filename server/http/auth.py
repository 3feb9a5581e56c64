"""Authentication: every path needs a key unless it is listed as open. Keys are kept only as SHA-256 digests."""

import hmac
from collections.abc import Callable, Iterable, Mapping

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import AuthenticationError, describe
from .keys import digest

# Paths that load balancers ask. Compared with the path that the router sees, so an odd spelling can only lose access.
OPEN_PATHS = frozenset({"/health", "/ready", "/version"})
NO_OWNER = ""  # owner of everything on a server without keys
KEY_HEADERS = ("x-api-key", "api-key")  # headers of Anthropic's and Azure's clients, read without Authorization: Bearer


class KeyRing:
    """Keys that open this server."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def __repr__(self) -> str:
        return f"KeyRing({len(self._digests)} keys)"

    def owner(self, headers: Mapping[str, str]) -> str:
        """Return the owner that these headers prove: the key's digest, or NO_OWNER on a server without keys. Raises."""
        if not self._digests:
            return NO_OWNER
        key = _key_in(headers)
        if not key:
            raise AuthenticationError(
                "this server needs an API key: send `Authorization: Bearer KEY` or `x-api-key: KEY`"
            )
        owner = digest(key)
        matches = [hmac.compare_digest(owner, valid) for valid in self._digests]  # all keys, in constant time
        if not any(matches):
            raise AuthenticationError("this API key is not known here")
        return owner


def _key_in(headers: Mapping[str, str]) -> str:
    """Return the key in the headers, an empty string without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return next((headers[name].strip() for name in KEY_HEADERS if name in headers), "")


def owner_of(connection: HTTPConnection) -> str:
    """Return the owner that the middleware found for this request."""
    owner = connection.scope["splitfuse.owner"]
    assert isinstance(owner, str)
    return owner


class RequireKey:
    """ASGI middleware that answers 401 without a valid key, except at OPEN_PATHS and where `is_open` is true."""

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
