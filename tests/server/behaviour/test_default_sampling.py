"""Sampling defaults of the model: every route takes them where a request has none, and kept work keeps them."""

import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import Served
from fake_engine import FakeEngine
from serving import ServerProcess, ready_client

from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.server.app import build_app
from splitfuse.server.settings import Settings

MESSAGES = [{"role": "user", "content": "Tell me a story."}]
# Each route's shortest body, the number of tokens that a body without a limit gets, and the text of the answer.
ROUTES: dict[str, tuple[dict[str, Any], int | None, Callable[[Any], str]]] = {
    "/generate": ({"prompt": "Once", "stream": False}, 64, lambda answer: answer["text"]),
    "/v1/completions": ({"prompt": "Once"}, 16, lambda answer: answer["choices"][0]["text"]),
    "/v1/chat/completions": ({"messages": MESSAGES}, None, lambda answer: answer["choices"][0]["message"]["content"]),
    "/v1/responses": ({"input": "Tell me a story."}, None, lambda answer: answer["output"][0]["content"][0]["text"]),
    "/v1/messages": ({"messages": MESSAGES, "max_tokens": 24}, 24, lambda answer: answer["content"][0]["text"]),
    "/api/chat": ({"messages": MESSAGES, "stream": False}, None, lambda answer: answer["message"]["content"]),
    "/api/generate": ({"prompt": "Once", "stream": False}, None, lambda answer: answer["response"]),
}
OLLAMA_NAMES = {"repetition_penalty": "repeat_penalty", "max_tokens": "num_predict"}
OF_MODEL = {"temperature": 0.6, "top_p": 0.8, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
OTHER = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
WAIT = {"Prefer": "wait=60"}  # for /generate


def body_with(route: str, **fields: Any) -> dict[str, Any]:
    """Return the route's body with these sampling fields."""
    body = ROUTES[route][0]
    if route.startswith("/api"):
        return {**body, "options": {OLLAMA_NAMES.get(name, name): value for name, value in fields.items()}}
    if route == "/v1/responses" and "max_tokens" in fields:
        fields["max_output_tokens"] = fields.pop("max_tokens")
    return body | fields


async def params_of(served: Served, route: str, **fields: Any) -> SamplingParams:
    """Return the parameters with which a request reaches the engine."""
    response = await served.client.post(route, json=body_with(route, **fields))
    assert response.status_code in (200, 202), response.text
    return served.engine.params[-1]


@pytest.mark.parametrize("route", ROUTES)
async def test_a_request_without_a_field_has_the_models(served: Served, route: str) -> None:
    neutral = await params_of(served, route)
    served.engine.default_sampling_params = OF_MODEL
    by_default = await params_of(served, route)
    assert by_default != neutral
    assert {name: getattr(by_default, name) for name in OF_MODEL} == OF_MODEL
    for name, value in OTHER.items():  # what a request says wins
        params = await params_of(served, route, **{name: value})
        assert {field: getattr(params, field) for field in OF_MODEL} == {**OF_MODEL, name: value}
    served.engine.default_sampling_params = {}
    assert await params_of(served, route, **OF_MODEL) == by_default


@pytest.mark.parametrize("route", ROUTES)
async def test_max_new_tokens_is_a_default_that_is_cut_to_what_fits(served: Served, route: str) -> None:
    own, is_needed = ROUTES[route][1], route == "/v1/messages"  # where a body must have max_tokens
    assert (await params_of(served, route)).default_max_tokens == own
    served.engine.default_sampling_params = {"max_tokens": 30}
    params = await params_of(served, route)
    assert params.default_max_tokens == (own if is_needed else 30)
    assert params.max_tokens in (None, own)
    params = await params_of(served, route, max_tokens=7)
    assert 7 in (params.max_tokens, params.default_max_tokens)
    assert 30 not in (params.max_tokens, params.default_max_tokens) or params.max_tokens == 7


async def test_ollamas_unlimited_num_predict_is_a_choice(served: Served) -> None:
    served.engine.default_sampling_params = {"max_tokens": 30}
    assert (await params_of(served, "/api/chat", max_tokens=-1)).default_max_tokens is None


async def test_models_and_responses_show_the_values(served: Served) -> None:
    served.engine.default_sampling_params = OF_MODEL
    (model,) = (await served.client.get("/v1/models")).json()["data"]
    assert model["default_sampling_params"] == OF_MODEL
    answer = (await served.client.post("/v1/responses", json={"input": "Hello", "max_output_tokens": 2})).json()
    assert (answer["temperature"], answer["top_p"]) == (0.6, 0.8)


class ResumingEngine(FakeEngine):
    """Fake engine of a server with these defaults, which takes requests of an earlier one."""

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        super().__init__()
        self.default_sampling_params = dict(defaults)

    async def submit(self, *args: Any, resumed: Any = None, **options: Any) -> Any:  # type: ignore[override]
        return await super().submit(*args, **options)


@asynccontextmanager
async def server_on(path: Path, engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    app = build_app(Settings(results=str(path)), engine)  # type: ignore[arg-type]
    async with ready_client(app) as client:
        yield client


@pytest.mark.parametrize("is_renewed", [False, True])
@pytest.mark.parametrize(("route", "body"), [("/generate", {}), ("/v1/responses", {"background": True})])
async def test_a_resumed_request_keeps_its_defaults(
    tmp_path: Path, route: str, body: dict[str, Any], is_renewed: bool
) -> None:
    first, second = ResumingEngine({"temperature": 0.3, "max_tokens": 9}), ResumingEngine({"temperature": 0.9})
    second.fingerprint = "another" if is_renewed else first.fingerprint
    first.hold()
    second.hold()
    async with server_on(tmp_path / "results", first) as client:
        assert (await client.post(route, json=ROUTES[route][0] | body)).status_code in (200, 202)
    async with server_on(tmp_path / "results", second) as client:
        await client.post(route, json=ROUTES[route][0] | body)
        kept, new = second.params
        assert (kept.temperature, kept.default_max_tokens) == (0.3, 9)
        assert new.temperature == 0.9


async def test_a_batch_keeps_its_defaults(tmp_path: Path) -> None:
    engines = [ResumingEngine({"temperature": 0.3}), ResumingEngine({"temperature": 0.9})]
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once"}}
    for engine in engines:
        engine.hold()
        async with server_on(tmp_path / "results", engine) as client:
            if engine is engines[0]:
                files = {"file": ("lines.jsonl", json.dumps(line))}
                file = (await client.post("/v1/files", files=files, data={"purpose": "batch"})).json()
                asked = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
                assert (await client.post("/v1/batches", json=asked)).status_code == 200
            await engine.submitted.wait()
            assert [params.temperature for params in engine.params] == [0.3]


@pytest.fixture(scope="module")
def greedy_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Yield a server of the demo model whose authors want the likeliest token."""
    folder = tmp_path_factory.mktemp("model") / "greedy"
    shutil.copytree(DEMO_FOLDER, folder, ignore=shutil.ignore_patterns("*.py", "draft"))
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"top_k": 1}))
    override = json.dumps({"max_new_tokens": 12})
    with ServerProcess(str(folder), "--override-generation-config", override) as server:
        yield server


@pytest.mark.parametrize("route", ROUTES)
def test_a_model_with_top_k_1_gives_one_text(greedy_server: ServerProcess, route: str) -> None:
    with httpx.Client(base_url=greedy_server.url, timeout=60, headers=WAIT) as client:
        answers = [client.post(route, json=body_with(route)).json() for _ in range(5)]
        free = [client.post(route, json=body_with(route, top_k=0, temperature=1.5)).json() for _ in range(5)]
    text_of = ROUTES[route][2]
    assert len(set(map(text_of, answers))) == 1
    assert len(set(map(text_of, free))) > 1


def test_a_server_shows_its_defaults(greedy_server: ServerProcess) -> None:
    expected = {"temperature": 0.7, "top_p": 0.95, "top_k": 1, "max_tokens": 12}
    assert httpx.get(f"{greedy_server.url}/stats").json()["default_sampling_params"] == expected
    row = "  sampling  temperature 0.7, top_p 0.95, top_k 1, max_tokens 12 where a request has none\n"
    assert row in greedy_server.banner


@pytest.mark.parametrize("route", ROUTES)
def test_the_same_seed_gives_the_text_of_the_files_values(live_server: ServerProcess, route: str) -> None:
    if route.startswith("/api"):
        pytest.skip("this server has no Ollama API")
    file, neutral = {"temperature": 0.7, "top_p": 0.95}, {"temperature": 1, "top_p": 1}
    with httpx.Client(base_url=live_server.url, timeout=60, headers=WAIT) as client:

        def texts(**fields: Any) -> list[str]:
            bodies = [body_with(route, seed=seed, max_tokens=24, **fields) for seed in range(6)]
            return [ROUTES[route][2](client.post(route, json=body).json()) for body in bodies]

        assert texts() == texts(**file) != texts(**neutral)


async def test_the_schema_names_no_default_that_a_client_would_send(served: Served) -> None:
    document = (await served.client.get("/openapi.json")).json()
    fields = document["components"]["schemas"]["GenerateRequest"]["properties"]
    assert [name for name in (*OF_MODEL, "max_tokens") if "default" in fields[name]] == []
