"""Authentication: every path needs a key unless it is listed as open. Keys are kept only as SHA-256 digests.

An admin watches all requests and changes the server. Without admin keys a single key is an admin, and so is everybody
on a server without keys; none of several keys is.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from ...engine.language.workers.shares import note_sharer
from .errors import AuthenticationError, describe
from .keys import digest

# Paths that load balancers ask. Compared with the path that the router sees, so an odd spelling can only lose access.
OPEN_PATHS = frozenset({"/health", "/ready", "/version"})
NO_OWNER = ""  # owner of everything on a server without keys
KEY_HEADERS = ("x-api-key", "api-key")  # headers of Anthropic's and Azure's clients, read without Authorization: Bearer
# Keys in a request's scope.
OWNER = "splitfuse.owner"
CALLER = "splitfuse.caller"


class Caller(NamedTuple):
    """Identity that a request proves: the key's digest, or NO_OWNER on a server without keys, and its rights."""

    owner: str
    is_admin: bool
    may_read_sums: bool  # over the requests of all callers


class KeyRing:
    """Keys that open this server. It is true if requests need one."""

    def __init__(self, keys: Iterable[str], admin_keys: Iterable[str] = ()) -> None:
        self._digests = {digest(key) for key in keys}
        self._admin_digests = {digest(key) for key in admin_keys}
        self._known = self._digests | self._admin_digests

    def __bool__(self) -> bool:
        return bool(self._digests)

    @property
    def has_several(self) -> bool:
        """True if keys share the server."""
        return len(self._digests) > 1

    def __repr__(self) -> str:
        return f"KeyRing({len(self._digests)} keys, {len(self._admin_digests)} admin keys)"

    def owner(self, headers: Mapping[str, str]) -> str:
        """Return the owner that these headers prove. Raises AuthenticationError."""
        return self.caller(headers).owner

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Return the caller that these headers prove. Raises AuthenticationError."""
        key = _key_in(headers)
        owner = digest(key) if key else NO_OWNER
        has_admins = bool(self._admin_digests)
        is_admin = owner in self._admin_digests if has_admins else len(self._digests) <= 1
        if not self._digests:
            return Caller(NO_OWNER, is_admin, is_admin)
        if not key:
            raise AuthenticationError(
                "this server needs an API key: send `Authorization: Bearer KEY` or `x-api-key: KEY`"
            )
        if owner not in self._known:  # who times this learns of digests, which nobody can choose
            raise AuthenticationError("this API key is not known here")
        return Caller(owner, is_admin, is_admin or not has_admins)


def _key_in(headers: Mapping[str, str]) -> str:
    """Return the key in the headers, an empty string without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return next((headers[name].strip() for name in KEY_HEADERS if name in headers), "")


def owner_of(connection: HTTPConnection) -> str:
    """Return the owner that the middleware found for this request."""
    owner = connection.scope[OWNER]
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
                scope[CALLER] = caller = self._keys.caller(HTTPConnection(scope).headers)
                scope[OWNER] = caller.owner
                note_sharer(caller.owner if self._keys.has_several else "")
            except AuthenticationError as exc:
                await describe(exc).response()(scope, receive, send)
                return
        await self._app(scope, receive, send)
