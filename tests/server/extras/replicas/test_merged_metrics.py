"""Merged metrics of all replicas: every family once, every sample labelled, none lost."""

from prometheus_client.parser import text_string_to_metric_families

from splitfuse.server.extras.replicas.operations import merged

PAGE = """# HELP splitfuse:prompt_tokens_total Tokens of prompts.
# TYPE splitfuse:prompt_tokens_total counter
splitfuse:prompt_tokens_total{{model_name="m"}} {tokens}
# HELP splitfuse:e2e_request_latency_seconds Latency.
# TYPE splitfuse:e2e_request_latency_seconds histogram
splitfuse:e2e_request_latency_seconds_bucket{{le="0.5",model_name="m"}} 1.0
splitfuse:e2e_request_latency_seconds_bucket{{le="+Inf",model_name="m"}} {tokens}
splitfuse:e2e_request_latency_seconds_count{{model_name="m"}} {tokens}
splitfuse:e2e_request_latency_seconds_sum{{model_name="m"}} 2.5
"""


def page(*pages: str | None) -> str:
    return merged({f"r{number}": text for number, text in enumerate(pages)}, prefix="splitfuse:").decode()


def test_every_sample_has_its_replica() -> None:
    lines = page(PAGE.format(tokens="3.0"), PAGE.format(tokens="4.0")).splitlines()
    assert 'splitfuse:prompt_tokens_total{model_name="m",replica="r0"} 3.0' in lines
    assert 'splitfuse:prompt_tokens_total{model_name="m",replica="r1"} 4.0' in lines
    assert 'splitfuse:e2e_request_latency_seconds_bucket{le="0.5",model_name="m",replica="r1"} 1.0' in lines


def test_a_family_is_declared_once() -> None:
    text = page(PAGE.format(tokens="3.0"), PAGE.format(tokens="4.0"))
    assert text.count("# TYPE splitfuse:prompt_tokens_total counter") == 1
    assert text.count("# TYPE splitfuse:e2e_request_latency_seconds histogram") == 1


def test_what_prometheus_reads_is_what_the_replicas_told() -> None:
    own = {
        (sample.name, *sorted(sample.labels.items()), sample.value)
        for family in text_string_to_metric_families(PAGE.format(tokens="3.0"))
        for sample in family.samples
    }
    read = {
        (
            sample.name,
            *sorted((name, value) for name, value in sample.labels.items() if name != "replica"),
            sample.value,
        )
        for family in text_string_to_metric_families(page(PAGE.format(tokens="3.0")))
        for sample in family.samples
    }
    assert read == own | {("splitfuse:replica_up", 1.0)}


def test_a_replica_that_does_not_answer_is_down() -> None:
    lines = page(PAGE.format(tokens="3.0"), None).splitlines()
    assert 'splitfuse:replica_up{replica="r0"} 1.0' in lines
    assert 'splitfuse:replica_up{replica="r1"} 0.0' in lines
    assert sum("prompt_tokens_total{" in line for line in lines) == 1
