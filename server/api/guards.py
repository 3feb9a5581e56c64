"""Guards: the middleware before all routes, which asks for the key and keeps foreign pages out."""

from collections.abc import Callable, Sequence

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from ..http.auth import KeyRing, RequireKey
from ..http.foreign_pages import RefuseForeignPages
from ..server_settings import ServerSettings

# Response headers that pages of --allowed-origins may read.
_EXPOSED_HEADERS = (
    *("Location", "Retry-After", "X-Ignored-Fields", "X-In-Words", "X-Max-Tokens", "X-Request-Id", "X-Seq-Id"),
    *("X-Unenforced", "openai-processing-ms", "x-ratelimit-limit-requests", "x-ratelimit-remaining-requests"),
    *("request-id", "anthropic-ratelimit-requests-limit", "anthropic-ratelimit-requests-remaining"),
)


def guards(
    settings: ServerSettings, keys: KeyRing, *, is_open: Callable[[Scope], bool], inside: Sequence[Middleware]
) -> list[Middleware]:
    """Return the middleware, outermost first; `inside` stands before what may refuse a request.

    With API keys the guard against foreign pages is not needed: a page has no key.
    """
    origins = settings.origins
    names = {settings.host.lower(), *settings.hosts}
    guard = Middleware(RefuseForeignPages, hosts=names, origins=origins, is_open=is_open)
    # Before the key is asked for: browsers send none with a preflight.
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["*"],
        allow_headers=["*"],
        allow_private_network=True,
        expose_headers=_EXPOSED_HEADERS,
    )
    key = Middleware(RequireKey, keys=keys, is_open=is_open)
    root = [Middleware(_RootPath, root_path=settings.root_path)] * bool(settings.root_path)
    return [*root, *inside, *[guard] * (not keys), *[cors] * bool(origins), key, Middleware(_IgnoreTrailingSlash)]


class _RootPath:
    """ASGI middleware that drops --root-path where a proxy has left it."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app, self._root_path = app, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and f"{scope['path']}/".startswith(f"{self._root_path}/"):
            scope["path"] = scope["path"].removeprefix(self._root_path) or "/"
        await self._app(scope, receive, send)


class _IgnoreTrailingSlash:
    """ASGI middleware that drops a trailing slash: a redirect would turn a POST into a GET and drop its body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/"):
            scope["path"] = scope["path"].rstrip("/") or "/"  # in place: the middleware outside reads the route
        await self._app(scope, receive, send)
