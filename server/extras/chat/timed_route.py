"""TimedRoute: route of OpenAI's APIs, whose answers say how long they took and what is left of the caller's limit."""

import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from ...http.auth import owner_of
from ...http.response_middleware import answer_headers
from ...service import service_of


class TimedRoute(APIRoute):
    """Route that adds `openai-processing-ms`: the time until the answer begins, refusals included."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler."""
        handler = super().get_route_handler()

        async def timed(request: Request) -> Response:
            start = time.perf_counter()
            try:
                return await handler(request)
            finally:
                duration_ms = round(1000 * (time.perf_counter() - start))
                answer_headers(request).update({"openai-processing-ms": str(duration_ms), **self.limits(request)})

        return timed

    def limits(self, request: Request) -> Mapping[str, str]:
        """Build the headers of the caller's limits."""
        return {}


class LimitedRoute(TimedRoute):
    """Like TimedRoute, but its results count for `--max-unfinished-per-key`."""

    def limits(self, request: Request) -> Mapping[str, str]:
        """Build the headers, none without that setting."""
        results = service_of(request).results
        if (most := results.limits.max_unfinished) is None:
            return {}
        num_left = max(0, most - len(results.unfinished(owner=owner_of(request))))
        return {"x-ratelimit-limit-requests": str(most), "x-ratelimit-remaining-requests": str(num_left)}
