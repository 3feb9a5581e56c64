"""Operations: the supervisor's own answers behind HAProxy, that is, the metrics of all replicas.

ReplicaClient: the supervisor's requests to replicas, which bypass HAProxy.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping

import httpx
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .placement import Address

_REFUSAL_HEADERS = ("content-type", "www-authenticate")
_PASSED_ON = ("authorization", "x-api-key", "api-key")
_ANSWER_S = 5.0


class ReplicaClient:
    """HTTP client for replicas."""

    def __init__(self) -> None:
        self._client = httpx.AsyncClient(timeout=_ANSWER_S, trust_env=False)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def is_ready(self, address: Address) -> bool:
        """True if the replica has loaded its model and accepts work."""
        answer = await self.get(address, "/ready", headers={})
        return answer is not None and answer.status_code == 200

    async def get(self, address: Address, path: str, *, headers: Mapping[str, str]) -> httpx.Response | None:
        """Return the replica's answer, None if there is none."""
        try:
            async with asyncio.timeout(_ANSWER_S):  # httpx's own limit is one of each read
                return await self._client.get(f"http://{address}{path}", headers=dict(headers))
        except (httpx.HTTPError, TimeoutError):
            return None


def merged(pages: Mapping[str, str | None], *, prefix: str) -> bytes:
    """Build one page in Prometheus' text format. `pages` maps replicas to their pages, None without an answer."""
    registry = CollectorRegistry()
    registry.register(_Families(pages, prefix))
    return generate_latest(registry)


class _Families:
    """Collector of the merged metrics."""

    def __init__(self, pages: Mapping[str, str | None], prefix: str) -> None:
        self._pages = pages
        self._prefix = prefix

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering does not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield each metric once, with the samples of all replicas."""
        up = GaugeMetricFamily(f"{self._prefix}replica_up", "1 where the replica answers.", labels=["replica"])
        families: dict[str, Metric] = {}
        for replica, page in self._pages.items():
            up.add_metric([replica], float(page is not None))
            for family in text_string_to_metric_families(page or ""):
                merged_family = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                merged_family.samples += [
                    sample._replace(labels=sample.labels | {"replica": replica}) for sample in family.samples
                ]
        yield up
        yield from families.values()


class Operations:
    """App with the merged metrics.

    `addresses` returns the running replicas by name; the replicas check the request's key.
    """

    def __init__(
        self, addresses: Callable[[], Mapping[str, Address | None]], client: ReplicaClient, *, metrics_prefix: str
    ) -> None:
        self._addresses = addresses
        self._client = client
        self._prefix = metrics_prefix

    def app(self) -> Starlette:
        """Build the app."""
        return Starlette(routes=[Route("/metrics", self._metrics)])

    async def _metrics(self, request: Request) -> Response:
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        addresses = self._addresses()
        answers = await asyncio.gather(*(self._page(address, headers) for address in addresses.values()))
        refusal = next((reply for reply in answers if reply is not None and reply.status_code in (401, 403)), None)
        if refusal is not None:
            kept = {name: refusal.headers[name] for name in _REFUSAL_HEADERS if name in refusal.headers}
            return Response(refusal.content, refusal.status_code, headers=kept)
        pages = {
            name: answer.text if answer is not None and answer.status_code == 200 else None
            for name, answer in zip(addresses, answers, strict=True)
        }
        return Response(merged(pages, prefix=self._prefix), media_type=CONTENT_TYPE_LATEST)

    async def _page(self, address: Address | None, headers: Mapping[str, str]) -> httpx.Response | None:
        return None if address is None else await self._client.get(address, "/metrics", headers=headers)
