"""The `prometheus_client` parsers on /metrics: `python tests/clients/prometheus_client_sdk.py BASE_URL`."""

import sys
import urllib.request

from checks import ANSWER, QUESTION, follow, key, main, model_of
from prometheus_client.parser import text_string_to_metric_families


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, self._name = url, model_of(url)

    def families(self) -> None:
        families = list(text_string_to_metric_families(self._metrics()))
        assert len(families) > 30
        assert all(family.documentation and family.type != "unknown" for family in families)
        assert len({family.name for family in families}) == len(families)

    def counters_count(self) -> None:
        follow(self._url, ANSWER, needs_tools=False)
        before = self._value("splitfuse:generation_tokens_total")
        self._get("/v1/completions", f'{{"model": "{self._name}", "prompt": "{QUESTION}", "max_tokens": 8}}')
        assert self._value("splitfuse:generation_tokens_total") > before

    def histograms_are_whole(self) -> None:
        for family in text_string_to_metric_families(self._metrics()):
            if family.type == "histogram":
                counts = {one.value for one in family.samples if one.labels.get("le") == "+Inf"}
                assert counts == {one.value for one in family.samples if one.name.endswith("_count")}, family.name

    def _value(self, name: str) -> float:
        families = text_string_to_metric_families(self._metrics())
        return sum(one.value for family in families for one in family.samples if one.name == name)

    def _metrics(self) -> str:
        return self._get("/metrics")

    def _get(self, path: str, body: str | None = None) -> str:
        headers = {"Authorization": f"Bearer {key()}"}
        asked = urllib.request.Request(self._url + path, body.encode() if body else None, headers)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return str(answer.read().decode())


if __name__ == "__main__":
    sys.exit(main(Checks, "prometheus_client"))
