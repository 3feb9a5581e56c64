"""Routes of OpenAI's and Anthropic's APIs, whose answers carry their duration and the rest of the limit."""

import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ClassVar

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from ...http.auth import owner_of
from ...http.errors import REQUEST_ID
from ...http.response_middleware import answer_headers, listed
from ...service import service_of
from ..rights import caller_of

_OTHER_QUERIES = frozenset({"beta", "api-version"})  # Anthropic's and Azure's SDKs send them with every request


class LimitedRoute(APIRoute):
    """Route that adds the limit of unfinished requests and the rest of the limit, to refusals too.

    Unknown parameters of the query are named in X-Ignored-Fields.
    """

    limit_name: ClassVar = "x-ratelimit-limit-requests"
    rest_name: ClassVar = "x-ratelimit-remaining-requests"

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler."""
        handler = super().get_route_handler()
        dependants = (self.dependant, *self.dependant.dependencies)
        known = _OTHER_QUERIES.union(param.alias for node in dependants for param in node.query_params)

        async def limited(request: Request) -> Response:
            start = time.perf_counter()
            if unknown := request.query_params.keys() - known:
                answer_headers(request)["X-Ignored-Fields"] = listed(sorted(unknown))
            try:
                return await handler(request)
            finally:
                answer_headers(request).update(self.headers(request, time.perf_counter() - start))

        return limited

    def headers(self, request: Request, duration_s: float) -> Mapping[str, str]:
        """Build the headers; none before the model is loaded."""
        if (limit := self.limit(request)) is None:
            return {}
        most, num_unfinished = limit
        return {self.limit_name: str(most), self.rest_name: str(max(0, most - num_unfinished))}

    def limit(self, request: Request) -> tuple[int, int] | None:
        """Return the most unfinished outputs, and how many there are: the caller's own if sums are not for its key."""
        service, caller = service_of(request), caller_of(request)
        if (engine := service.lifecycle.loaded) is None:
            return None
        own = None if caller.may_read_sums else sum(engine.view.counts_of(caller.owner).values())
        most = engine.config.max_queue_size + engine.config.max_num_seqs
        return most, engine.num_unfinished if own is None else own


class TimedRoute(LimitedRoute):
    """Like LimitedRoute, with `openai-processing-ms`: the time until the answer begins."""

    def headers(self, request: Request, duration_s: float) -> Mapping[str, str]:
        """Build the headers."""
        return {"openai-processing-ms": str(round(1000 * duration_s)), **super().headers(request, duration_s)}


class QuotaRoute(TimedRoute):
    """Like TimedRoute, but `--max-unfinished-per-key` is the limit where it is set: results are kept."""

    def limit(self, request: Request) -> tuple[int, int] | None:
        """Return the most unfinished results of the caller, and how many there are."""
        results = service_of(request).results
        if (most := results.limits.max_unfinished) is None:
            return super().limit(request)
        return most, len(results.unfinished(owner=owner_of(request)))


class AnthropicRoute(LimitedRoute):
    """Like LimitedRoute, with Anthropic's names of the headers, and `request-id`."""

    limit_name = "anthropic-ratelimit-requests-limit"
    rest_name = "anthropic-ratelimit-requests-remaining"

    def headers(self, request: Request, duration_s: float) -> Mapping[str, str]:
        """Build the headers."""
        return {"request-id": request.scope[REQUEST_ID], **super().headers(request, duration_s)}
