"""Merged metrics: all replicas on one page, each sample with the label `replica`."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families


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
