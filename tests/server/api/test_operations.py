"""Health, readiness, metrics, stats, and the envelope of everything that is not there."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock

import httpx
import pytest
from fake_engine import FakeEngine
from prometheus_client.parser import text_string_to_metric_families
from serving import serving

from splitfuse.engine.core.outputs import StepStats
from splitfuse.engine.core.sampling_params import FIELD_NAMES
from splitfuse.engine.errors import ConfigError, QueueFullError
from splitfuse.kernels.cpu import compilation
from splitfuse.server.app import build_app
from splitfuse.server.metrics import Metrics
from splitfuse.server.settings import Settings

SERVER = Path(__file__).parents[3] / "server"
GAUGES = [
    *("num_requests_running", "num_requests_waiting", "num_requests_swapped", "kv_cache_usage_perc"),
    *("grammar_cache_bytes", "prefix_cache_disk_bytes", "cache_config_info"),
    *("results_file_bytes", "results_journal_lag_seconds"),
]
PROCESS = {f"process_{name}" for name in ("virtual_memory_bytes", "resident_memory_bytes", "start_time_seconds")}
PROCESS |= {f"process_{name}" for name in ("cpu_seconds", "open_fds", "max_fds")}
COUNTERS = {
    "num_preemptions": {"mode"},
    "request_success": {"finished_reason"},
    **{f"prefix_cache_disk_{name}": {} for name in ("hits", "read_bytes", "written_bytes", "damaged")},
    **{f"{goal}_goal_{end}": {} for goal in ("ttft", "itl") for end in ("hits", "misses")},
    **{f"grammar_{name}": {} for name in ("cache_queries", "cache_hits", "refusals")},
    **{name: {} for name in ("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits")},
    **{name: {} for name in ("kernels_compiled", "cuda_graphs_captured", "connections_refused", "ignored_fields")},
    **{name: {} for name in ("schema_check_failures", "log_lines_dropped")},
}
HISTOGRAMS = [
    *("time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds"),
    *("e2e_request_latency_seconds", "request_queue_time_seconds", "iteration_tokens_total"),
    *("request_prompt_tokens", "request_generation_tokens"),
    *(f"request_{name}_time_seconds" for name in ("prefill", "decode", "inference")),
    *("request_max_num_generation_tokens", "request_params_n", "time_per_output_token_seconds"),
]


@pytest.fixture
async def loading(settings):
    """Yield a server whose engine has not started yet."""
    engine = FakeEngine()
    engine.may_start.clear()
    app = build_app(settings, engine)
    async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=70) as client:
        yield engine, app.state.service, client
        engine.may_start.set()


def is_refusal(response, code):
    error = response.json()["error"]
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert (error["type"], error["code"]) == ("service_unavailable", code)


async def test_while_loading(loading, monkeypatch):
    engine, service, client = loading
    for path in ("/health", "/ready", "/v1/models", "/v1/models/splitfuse-demo-5m"):
        is_refusal(await client.get(path), "loading")
    for path, fields in [
        ("/generate", {"prompt": "x"}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [1]}),
        # The name of an adapter, perhaps: nobody knows them yet.
        ("/v1/completions", {"prompt": "x", "model": "pirate"}),
        ("/generate", {"prompt": "x", "lora_path": "pirate"}),
    ]:
        is_refusal(await client.post(path, json=fields), "loading")
    assert (await client.get("/version")).status_code == 200
    assert (await client.get("/metrics")).status_code == 200
    assert (await client.get("/stats")).json()["state"] == "loading"
    monkeypatch.setattr(compilation, "_build", SimpleNamespace(progress="7 of 17 files, 40 s"))
    for answer in (await client.get("/ready"), await client.post("/generate", json={"prompt": "x"})):
        is_refusal(answer, "loading")
        assert answer.json()["error"]["message"].endswith("building the CPU library: 7 of 17 files, 40 s")
    engine.may_start.set()
    await service.lifecycle.loading
    assert (await client.get("/ready")).status_code == 200
    assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize("error", [ConfigError("no weights"), RuntimeError("a bug")])
async def test_a_model_that_cannot_be_loaded(loading, error, caplog):
    engine, service, client = loading
    engine.start_error = error
    engine.may_start.set()
    await asyncio.wait([service.lifecycle.loading])
    is_refusal(await client.get("/ready"), "failed")
    is_refusal(await client.get("/health"), "failed")
    assert str(error) in caplog.text


async def test_draining(served):
    served.engine.hold()
    url = (await served.client.post("/generate", json={"prompt": "x", "max_tokens": 3})).json()["result_url"]
    draining = asyncio.create_task(served.service.lifecycle.drain())
    await served.engine.drain_seen.wait()
    is_refusal(await served.client.get("/ready"), "draining")
    assert (await served.client.get("/health")).status_code == 200
    for path, fields in [
        ("/generate", {"prompt": "x"}),
        ("/generate", {"prompt": "x", "stream": True}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "stream": True}),
    ]:
        is_refusal(await served.client.post(path, json=fields), "draining")
    await served.engine.allow()
    assert (await served.client.get(url + "?wait=60")).json()["status"] == "completed"
    await draining


@pytest.mark.parametrize("settings", [Settings(drain_timeout=0.05)])
async def test_drain_timeout_cancels_what_is_left(served):
    served.engine.hold()
    url = (await served.client.post("/generate", json={"prompt": "x"})).json()["result_url"]
    await served.service.lifecycle.drain()
    assert (await served.client.get(url)).json()["status"] == "cancelled"


@pytest.mark.parametrize("settings", [Settings(drain_timeout=0.2)])
async def test_drain_waits_a_moment_for_pollers(served):
    served.engine.hold()
    url = (await served.client.post("/generate", json={"prompt": "x", "max_tokens": 1})).json()["result_url"]
    draining = asyncio.create_task(served.service.lifecycle.drain())
    await asyncio.sleep(0)
    await served.engine.allow()
    await served.service.results.get(url.rpartition("/")[2], owner="").ended.wait()
    assert not draining.done()
    assert (await served.client.get(url)).json()["status"] == "completed"
    await draining


async def test_an_engine_without_progress(served):
    served.engine.is_healthy = False
    health = await served.client.get("/health")
    is_refusal(health, "stalled")
    assert health.json()["code"] == "stalled"
    is_refusal(await served.client.get("/ready"), "stalled")


async def test_an_engine_whose_requests_all_fail_takes_more(served):
    served.engine.is_failing = True
    is_refusal(await served.client.get("/health"), "failing")
    assert (await served.client.get("/ready")).status_code == 200
    assert (await served.client.post("/generate", json={"prompt": "x"})).status_code == 202
    served.engine.is_failing = False
    assert (await served.client.get("/health")).status_code == 200


async def test_nothing_here(served):
    for method, path, status in [
        *(("GET", "/nope", 404), ("GET", "/v1", 404), ("GET", "/generate/", 405), ("GET", "/generate", 405)),
        *(("PUT", "/generate", 405), ("BREW", "/generate", 405), ("POST", "/health", 405)),
        ("PATCH", "/v1/completions", 405),
    ]:
        response = await served.client.request(method, path)
        assert response.status_code == status, (method, path)
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert (await served.client.get("/generate")).headers["allow"] == "POST"


async def test_no_cors(served):
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for method in ("OPTIONS", "GET"):
        response = await served.client.request(method, "/v1/models", headers=headers)
        assert not any(name.startswith("access-control") for name in response.headers)


async def test_documentation(served):
    assert (await served.client.get("/docs")).status_code == 200
    paths = (await served.client.get("/openapi.json")).json()["paths"]
    assert {"/generate", "/result/{seq_id}", "/v1/chat/completions", "/metrics"} <= set(paths)
    keyed = {"/generate", "/v1/responses", "/v1/batches"}
    assert {path for path in paths if "'422'" in str(paths[path])} == keyed, "reused keys"
    assert "ValidationError" not in str(paths), "never FastAPI's own 422"
    assert paths["/result/{seq_id}"]["get"]["parameters"][0]["name"] == "seq_id"


async def test_documentation_needs_no_other_host(served):
    page = (await served.client.get("/docs")).text
    assert "openapi.json" in page
    page = page.replace('<link rel="icon" href="data:,">', "")  # an empty one: a browser asks for none
    assert not re.search(r"(https?:)?//[a-z]|src=|<link|@import", page)


async def test_the_schema_shows_every_field_with_its_limits(served):
    document = (await served.client.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    for name, own in [
        ("GenerateRequest", {"prompt", "stream", "user", "model", "response_format"}),
        ("CompletionRequest", {"prompt", "echo", "best_of", "stream_options"}),
        ("ChatCompletionRequest", {"messages", "tools", "max_completion_tokens", "top_logprobs"}),
    ]:
        assert set(schemas[name]["properties"]) >= FIELD_NAMES | own
        assert schemas[name]["additionalProperties"] is (name != "GenerateRequest"), "the APIs of others are tolerant"
    assert schemas["GenerateRequest"]["properties"]["n"]["maximum"] == 64
    for model in schemas:
        assert f"#/components/schemas/{model}" in str(document), model
    for method in document["paths"]["/generate"].values():
        assert set(method["responses"]) == {
            *["200", "202", "400", "401", "403", "404", "408", "413", "415", "422", "429", "500", "503"]
        }
        assert "text/event-stream" in method["responses"]["200"]["content"]


def test_every_route_that_a_page_for_users_names_is_there():
    pages = [SERVER / "API.md", *(page for page in (SERVER / "docs").glob("*.md") if page.stem != "extending")]
    paths = build_app(Settings(model="some/model-that-may-pool", enable_lora=True)).openapi()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods} | {
        "GET /",
        "GET /engine",
        "POST /api/embed",
        "POST /results/backup",  # a server with --results FILE
        "POST /models/load",  # a server of several models
    }
    named = re.findall(r"\b((?:GET|POST|DELETE) +/[\w/{}-]*)", "\n".join(page.read_text() for page in pages))
    shapes = [{re.sub(r"{\w+}", "{}", " ".join(route.split())) for route in names} for names in (named, routes)]
    assert shapes[0] - shapes[1] == set()
    assert len(shapes[0]) > 30


async def test_a_full_queue_refuses_to_tokenize_and_the_schema_says_so(served, monkeypatch):
    refusal = QueueFullError("full; try again in 3 s", retry_after_s=3)
    for name in ("encode", "decode"):
        monkeypatch.setattr(served.engine, name, AsyncMock(side_effect=refusal))
    paths = (await served.client.get("/openapi.json")).json()["paths"]
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [65]})):
        response = await served.client.post(path, json=body)
        answer = (response.status_code, response.json()["error"]["code"], response.headers["retry-after"])
        assert answer == (429, "queue_full", "3")
        assert "429" in paths[path]["post"]["responses"]


async def test_allow_names_all_methods_of_a_path(served):
    for path, allow in [("/result/x", "DELETE, GET"), ("/v1/responses/x", "DELETE, GET"), ("/health", "GET, HEAD")]:
        response = await served.client.put(path)
        assert (response.status_code, response.headers["allow"]) == (405, allow)


async def test_allow_is_right_on_every_path(served):
    paths = (await served.client.get("/openapi.json")).json()["paths"]
    taken = {path: {method.upper() for method in methods} for path, methods in paths.items()}
    for path in ("/health", "/ready", "/version"):
        taken[path] |= {"HEAD"}
    taken["/v1/responses/input_tokens"] |= {"GET", "DELETE"}  # of a response with this id, which there is never
    taken |= {"/docs": {"GET"}, "/openapi.json": {"GET", "HEAD"}}
    for path, methods in taken.items():
        for method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"} - methods:
            response = await served.client.request(method, re.sub("{.*?}", "x", path))
            assert response.status_code == 405, (method, path)
            assert response.headers["allow"] == ", ".join(sorted(methods)), (method, path)


async def test_version(served):
    body = (await served.client.get("/version")).json()
    assert set(body) == {"version", "exact", "weights_version"}
    assert body["exact"] is True
    served.engine.loaded.inexact = "there is no native library"
    assert (await served.client.get("/version")).json()["exact"] is False


async def test_stats(served):
    served.engine.hold()
    await served.client.post("/generate", json={"prompt": "x"})
    stats = (await served.client.get("/stats")).json()
    assert stats["state"] == "ready"
    assert (stats["num_waiting"], stats["num_blocks"], stats["num_results"]) == (1, 100, 1)


async def scrape(served):
    response = await served.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(response.text)}


@pytest.mark.parametrize("settings", [Settings(), Settings(metrics_prefix="vllm:", served_model_name="mine")])
async def test_metrics_have_the_contracts_names(served):
    prefix = served.service.settings.metrics_prefix
    await scrape(served)  # the first one is counted
    families = await scrape(served)
    assert {name for name in families if name.startswith("process_")} == PROCESS
    families = {name: family for name, family in families.items() if name not in PROCESS}
    requests = families.pop(f"{prefix}http_requests")
    assert [sample.labels for sample in requests.samples] == [{"route": "/metrics", "method": "GET", "status": "200"}]
    expected = {prefix + name: "gauge" for name in GAUGES}
    expected |= {prefix + name: "counter" for name in COUNTERS}
    expected |= {prefix + name: "histogram" for name in HISTOGRAMS}
    assert {name: family.type for name, family in families.items()} == expected
    for family in families.values():
        for sample in family.samples:
            assert sample.labels["model_name"] == served.service.settings.model_name
            assert not sample.name.endswith("_created")
    for name, labels in COUNTERS.items():
        for sample in families[prefix + name].samples:
            assert sample.name == f"{prefix}{name}_total"
            assert set(sample.labels) == {"model_name", *labels}


async def test_metrics_count(served):
    url = (await served.client.post("/generate", json={"prompt": "hello", "max_tokens": 3})).json()["result_url"]
    await served.client.get(url + "?wait=60")
    samples = {
        (sample.name.removeprefix("splitfuse:"), sample.labels.get("finished_reason")): sample.value
        for family in (await scrape(served)).values()
        for sample in family.samples
    }
    assert samples["request_success_total", "length"] == 1
    assert samples["request_success_total", "abort"] == 0
    assert samples["prefix_cache_queries_total", None] == 5
    assert samples["prefix_cache_hits_total", None] == 2
    assert samples["request_generation_tokens_sum", None] == 3
    assert samples["e2e_request_latency_seconds_count", None] == 1
    assert samples["request_time_per_output_token_seconds_count", None] == 1
    assert samples["time_to_first_token_seconds_count", None] == 1


def test_histograms_count_as_prometheus_does():
    metrics = Metrics(prefix="", model_name="m", stats=dict)
    stats = StepStats(0, 0.0, 0.1, 0, 3, 3, 0, 1, 10, 0, ttfts=(), itls=(0.001, 0.03, 50.0, 1e9))
    metrics.on_step(stats)
    text = metrics.render().decode()
    counts = {
        le: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        for le in ("0.001", "0.0025", "0.05", "80.0", "+Inf")
        if line.startswith("inter_token_latency_seconds_bucket") and f'le="{le}"' in line
    }
    assert counts == {"0.001": 1, "0.0025": 1, "0.05": 2, "80.0": 3, "+Inf": 4}
    assert 'inter_token_latency_seconds_count{model_name="m"} 4.0' in text


async def test_odd_requests_make_no_new_series(served):
    for number in range(51):
        if number < 2:  # the first scrape is counted in the second
            before = len((await served.client.get("/metrics")).text.splitlines())
        await served.client.request(f"BREW{number}", f"/path{number}")
        await served.client.post("/v1/completions", json={"prompt": "x", "model": f"model{number}"})
    assert len((await served.client.get("/metrics")).text.splitlines()) == before


# The metrics in the panels of vLLM's boards: examples/online_serving/prometheus_grafana of 0.11, and those of its
# older versions.
VLLM_PANELS = """
e2e_request_latency_seconds_bucket e2e_request_latency_seconds_count e2e_request_latency_seconds_sum
prompt_tokens_total generation_tokens_total inter_token_latency_seconds_bucket inter_token_latency_seconds_count
inter_token_latency_seconds_sum time_per_output_token_seconds_bucket time_per_output_token_seconds_count
time_per_output_token_seconds_sum num_requests_running num_requests_swapped num_requests_waiting
time_to_first_token_seconds_bucket time_to_first_token_seconds_count time_to_first_token_seconds_sum
kv_cache_usage_perc request_prompt_tokens_bucket request_prompt_tokens_sum request_prompt_tokens_count
request_generation_tokens_bucket request_generation_tokens_sum request_generation_tokens_count request_success_total
request_queue_time_seconds_sum request_queue_time_seconds_count request_prefill_time_seconds_sum
request_prefill_time_seconds_bucket request_decode_time_seconds_sum request_decode_time_seconds_bucket
request_max_num_generation_tokens_sum request_max_num_generation_tokens_bucket
request_max_num_generation_tokens_count request_inference_time_seconds_sum request_params_n_bucket cache_config_info
iteration_tokens_total_bucket prefix_cache_hits_total prefix_cache_queries_total num_preemptions_total
"""


@pytest.mark.parametrize("settings", [Settings(metrics_prefix="vllm:")])
async def test_every_panel_of_vllms_boards_has_data(served):
    url = (await served.client.post("/generate", json={"prompt": "hello", "max_tokens": 3, "n": 2})).json()[
        "result_url"
    ]
    await served.client.get(url + "?wait=60")
    samples = {sample.name: sample for family in (await scrape(served)).values() for sample in family.samples}
    assert {f"vllm:{name}" for name in VLLM_PANELS.split()} - samples.keys() == set()
    values = {name: sample.value for name, sample in samples.items()}
    assert (values["vllm:request_params_n_sum"], values["vllm:request_params_n_count"]) == (2, 1)
    assert values["vllm:request_max_num_generation_tokens_sum"] == 3
    for name in ("prefill", "decode", "inference"):
        assert values[f"vllm:request_{name}_time_seconds_count"] == 2
    old, new = ("vllm:time_per_output_token_seconds", "vllm:inter_token_latency_seconds")
    assert values[f"{old}_count"] == values[f"{new}_count"]
    labels = samples["vllm:cache_config_info"].labels
    assert (labels["block_size"], labels["num_gpu_blocks"], labels["enable_prefix_caching"]) == ("16", "100", "True")
