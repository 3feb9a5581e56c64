"""Protection of a server without keys against foreign web pages.

Such a server answers everyone who reaches it, and a browser next to it reaches it for any page on the web. A page whose
name was made to resolve to this server's address (DNS rebinding) is visible in `Host`: the name is not ours. Any other
page is visible in `Origin` and `Sec-Fetch-Site`, which no script can change.
"""

import ipaddress
from collections.abc import Callable, Collection, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from .auth import OPEN_PATHS
from .errors import Problem

# Monitors call these paths under any name of the server. The answers show load, but no prompts, results or ids.
UNCHECKED_PATHS = OPEN_PATHS | {"/metrics"}
ANY = "*"


class RefuseForeignPages:
    """ASGI middleware that answers 403 if Host is not ours, or if the page's origin is not allowed.

    `is_open`: true of files without secrets. Behind a proxy that changes Host our own page looks foreign, and its files
    have to load, so that the page can show the reason.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str],
        origins: Collection[str],
        is_open: Callable[[Scope], bool] = lambda _: False,
    ) -> None:
        self._app = app
        self._is_open = is_open
        self._hosts = frozenset(hosts)
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = None
        if scope["type"] == "http" and scope["path"] not in UNCHECKED_PATHS:
            problem = self._problem(scope["method"], dict(scope["headers"]))
            if problem is not None and scope["path"] != "/" and scope["method"] == "GET" and self._is_open(scope):
                problem = None
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await problem.response()(scope, receive, send)

    def _problem(self, method: str, headers: Mapping[bytes, bytes]) -> Problem | None:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if not self._is_ours(_name(host)):
            return _refusal("host", f"the name {_name(host)[:100]!r} in Host")
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if self._is_allowed(origin) or not (_is_foreign(origin, host) or _is_embedded(method, headers)):
            return None
        return _refusal("origin", f"a web page of the origin {origin[:100]!r}" if origin else "a web page elsewhere")

    def _is_ours(self, name: str) -> bool:
        """True if no foreign page can have this name, like an address, or no name: HTTP/1.0 needs no Host."""
        if name in ("localhost", "127.0.0.1", "") or name in self._hosts or ANY in self._hosts:
            return True
        # No public name ends so: mDNS, and the hosts of containers (host.docker.internal) and clouds.
        return name.endswith((".localhost", ".local", ".internal")) or _is_address(name)

    def _is_allowed(self, origin: str) -> bool:
        return ANY in self._origins or origin in self._origins


def _refusal(kind: str, subject: str) -> Problem:
    # No key lets a page of another origin in: its browser asks without one first.
    way_out = f"if you trust it, start the server with --allowed-{kind}s" + (
        ", or with an --api-key" if kind == "host" else ""
    )
    message = f"{subject} may not use this server, which has no API keys; {way_out}"
    if kind == "origin":
        message += "; if it is this server's own page behind nginx, that needs: proxy_set_header Host $http_host"
    return Problem(403, message, "permission_error", code=f"{kind}_not_allowed")


def _is_foreign(origin: str, host: str) -> bool:
    return bool(origin) and origin.partition("://")[2] != host


def _is_embedded(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """True if a foreign page loads this inside itself, rather than by a link that the user follows."""
    is_link = headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"
    return headers.get(b"sec-fetch-site") == b"cross-site" and not (is_link and method == "GET")


def _name(host: str) -> str:
    """Return the name or address in `name`, `name:port`, `[address]` or `[address]:port`."""
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() else host).strip("[]").rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
