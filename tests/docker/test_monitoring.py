"""Dashboard and rules against the server's own /metrics: every name in a query is exported."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from splitfuse.server.metrics import Metrics

FOLDER = Path(__file__).parents[2] / "docker"
BOARD: dict[str, Any] = json.loads((FOLDER / "grafana" / "dashboards" / "splitfuse.json").read_text())
RULES: dict[str, Any] = yaml.safe_load((FOLDER / "prometheus_rules.yml").read_text())
REFERENCE = (FOLDER.parent / "server/docs/reference.md").read_text()
NAME = re.compile(r"\bsplitfuse:[a-z0-9_]+")


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Return every series name of /metrics, with its labels."""
    metrics = Metrics(prefix="splitfuse:", model_name="m", stats=dict)
    metrics.on_answer("/generate", "POST", 200)
    text = metrics.render().decode()
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def queries() -> list[str]:
    """Return every query of the dashboard and the rules."""
    board = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
    rules = [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]
    variables = [item["query"]["query"] for item in BOARD["templating"]["list"] if item["type"] == "query"]
    return board + rules + variables


@pytest.mark.parametrize("query", queries())
def test_every_metric_of_a_query_is_exported_with_its_labels(query: str, exported: dict[str, set[str]]) -> None:
    names = NAME.findall(query)
    assert names or query.startswith("up")
    for name in names:
        assert name in exported
    labels = set(re.findall(r"[{,]\s*(\w+)\s*=", query)) - {"job"}
    grouped = {word.strip() for words in re.findall(r"\bby \(([^)]*)\)", query) for word in words.split(",")}
    known = set().union(*(exported[name] for name in names), {"instance"})
    assert labels | grouped <= known


@pytest.mark.parametrize("query", queries())
def test_a_query_is_balanced_and_rates_only_what_counts(query: str, exported: dict[str, set[str]]) -> None:
    assert all(query.count(left) == query.count(right) for left, right in ("()", "{}", "[]"))
    for name in re.findall(r"rate\((splitfuse:[a-z0-9_]+)", query):
        assert name.endswith(("_total", "_bucket", "_sum", "_count"))
    for name in re.findall(r"histogram_quantile.*?(splitfuse:[a-z0-9_]+)", query):
        assert name.endswith("_bucket")


def test_every_query_is_promql() -> None:
    parser = pytest.importorskip("promql_parser", reason="pip install promql-parser")
    for query in queries():
        if not query.startswith("label_values"):
            parser.parse(query.replace("$__rate_interval", "1m"))


def test_the_board_shows_what_operators_ask_for() -> None:
    shown = {name for query in queries() for name in NAME.findall(query)}
    for name in (
        *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total"),
        *("generation_tokens_total", "num_preemptions_total", "request_success_total", "iteration_tokens_total_bucket"),
        *("time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket"),
        "e2e_request_latency_seconds_bucket",
    ):
        assert f"splitfuse:{name}" in shown


def test_panels_do_not_overlap_and_ids_are_unique() -> None:
    cells = [
        (x, y)
        for panel in BOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_every_panel_asks_the_chosen_source_for_the_chosen_model() -> None:
    assert [item["name"] for item in BOARD["templating"]["list"]] == ["datasource", "model_name"]
    for panel in BOARD["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert target["expr"].count('{model_name=~"$model_name"}') == len(NAME.findall(target["expr"]))


def test_every_alert_says_what_is_wrong() -> None:
    names = [rule["alert"] for group in RULES["groups"] for rule in group["rules"]]
    assert len(names) == len(set(names))
    for group in RULES["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["summary"]
            steps = rule["annotations"]["description"]
            assert len(steps.splitlines()) == 3
            assert [flag for flag in re.findall(r"--[a-z-]+", steps) if f"`{flag}`" not in REFERENCE] == []
            assert rule["labels"]["severity"] in ("warning", "critical")
