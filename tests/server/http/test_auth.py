"""Access: every route against no key, a wrong key and another's key; results are their owner's alone."""

import logging
import time

import pytest

from splitfuse.server.http.auth import KeyRing
from splitfuse.server.http.errors import AuthenticationError
from splitfuse.server.http.keys import digest
from splitfuse.server.settings import Settings

ALICE, BOB = "alice-secret-key", "bob-secret-key"
OPEN = ["/health", "/ready", "/version"]


@pytest.fixture
def settings():
    return Settings(api_key=(ALICE, BOB))


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def routes(app):
    """Return every route there is, those of FastAPI's documentation too, with a path that would match."""
    schema = app.openapi()["paths"]
    pairs = [(method.upper(), path) for path, methods in schema.items() for method in methods]
    pairs += [("GET", path) for path in ("/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect")]
    return [(method, path.replace("{seq_id}", "x" * 32).replace("{name}", "m")) for method, path in pairs]


async def test_every_route_needs_a_key(served):
    from splitfuse.server.app import build_app

    known = routes(build_app(Settings()))
    assert ("POST", "/generate") in known
    odd = ["/", "/nothing", "/health/", "//health", "/Health", "/%68ealth/x", "/health%2f", "/health/../generate"]
    odd += ["/static/x", "/v1", "/result", "/result/", "/.well-known/x"]
    for method, path in known + [("GET", path) for path in odd]:
        if path in OPEN:
            continue
        for headers in ({}, bearer("wrong"), bearer(ALICE[:-1]), bearer(ALICE + "x"), {"Authorization": ALICE}):
            response = await served.client.request(method, path, headers=headers)
            assert response.status_code == 401, (method, path, headers)
            assert response.headers["www-authenticate"] == "Bearer"
            error = response.json()["error"]  # a sentence on Ollama's routes
            assert path.startswith("/api/") or error["type"] == "authentication_error"
        response = await served.client.request(method, path, headers=bearer(ALICE))
        assert response.status_code != 401, (method, path)


async def test_probes_need_no_key_and_no_header_lets_another_request_in(served):
    for path in OPEN:
        assert (await served.client.get(path)).status_code == 200
        assert (await served.client.head(path)).status_code == 200
    paths = dict.fromkeys(("X-Original-URL", "X-Rewrite-URL", "X-Forwarded-Prefix"), "/health")
    others = {"Host": "localhost/health", "X-HTTP-Method-Override": "GET", "X-Forwarded-For": "127.0.0.1"}
    for name, value in (paths | others).items():
        response = await served.client.post("/generate", json={"prompt": "x"}, headers={name: value})
        assert response.status_code == 401, name


async def test_foreign_absent_expired_and_malformed_look_the_same(served, monkeypatch):
    fields = {"prompt": "x", "max_tokens": 2}
    body = (await served.client.post("/generate", json=fields, headers=bearer(ALICE))).json()
    own = body["result_url"]
    assert (await served.client.get(own + "?wait=60", headers=bearer(ALICE))).status_code == 200
    swapped = "/result/" + body["seq_id"].swapcase()
    absent = "/result/" + "A" * 32
    malformed = [f"/result/{name}" for name in ("x", "%00", "..%2f", "a" * 5000, "%F0%9F%98%80", "a/b")]
    answers = set()

    async def ask(path, key):
        for method, suffix in (("GET", ""), ("GET", "?wait=1"), ("GET", "/stream"), ("DELETE", "")):
            response = await served.client.request(method, path + suffix, headers=bearer(key))
            assert response.status_code == 404, (method, path)
            headers = {k: v for k, v in response.headers.items() if k not in ("x-request-id", "date")}
            answers.add((response.content, tuple(sorted(headers.items()))))

    for path in (own, swapped, absent, *malformed):
        await ask(path, BOB)
    assert (await served.client.get(own, headers=bearer(ALICE))).json()["status"] == "completed"
    monkeypatch.setattr(
        served.service.results.index, "_clock", lambda: time.monotonic() + served.service.settings.result_ttl
    )
    await ask(own, ALICE)
    assert len(answers) == 1


async def test_openai_client_key(served):
    import openai

    async with openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
        assert (await client.with_options(api_key=BOB).models.list()).data


async def test_keys_and_prompts_stay_out_of_the_log(served, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    served.engine.submit_error = KeyError("boom")
    for path in ("/generate", "/v1/completions"):
        await served.client.post(path, json={"prompt": "canary-prompt"}, headers=bearer(ALICE))
        await served.client.post(path, json={"prompt": "canary-prompt", "max_tokens": -1}, headers=bearer(ALICE))
        await served.client.post(path, content=b'{"prompt": "canary-prompt', headers=bearer(ALICE))
    await served.client.get("/result/canary-id?key=canary-query", headers=bearer(ALICE))
    written = caplog.text + "".join(capfd.readouterr())
    # The test's own HTTP client logs its URLs; ours must not.
    ours = "\n".join(line for line in written.splitlines() if "httpx" not in line and "httpcore" not in line)
    assert "boom" in ours
    assert "canary" not in ours
    assert ALICE not in ours
    assert ALICE not in repr(served.service.settings) + repr(served.service.keys)


def test_key_ring_owner():
    ring = KeyRing([ALICE, BOB])
    owners = {ring.owner({"authorization": f"Bearer {ALICE}"}), ring.owner({"authorization": f"bearer {BOB}"})}
    assert len(owners) == 2
    assert ALICE not in "".join(owners)
    for header in (None, "", "Bearer", "Bearer ", f"Basic {ALICE}", ALICE, "Bearer \udcff"):
        with pytest.raises(AuthenticationError):
            ring.owner({} if header is None else {"authorization": header})
    assert KeyRing([]).owner({}) == ""


def test_many_keys_cost_no_time():
    """50,000 keys took 11 ms of the loop for each request, with a wrong key too."""
    ring = KeyRing([f"key{number}" for number in range(50_000)], ["admin"])
    start = time.thread_time()
    for _ in range(100):
        assert ring.owner({"authorization": "Bearer key49999"}) == digest("key49999")
        with pytest.raises(AuthenticationError):
            ring.owner({"x-api-key": "wrong"})
    assert time.thread_time() - start < 0.1


@pytest.mark.parametrize("name", ["x-api-key", "api-key"])
async def test_a_key_may_come_in_a_header_of_its_own(served, name):
    ring = KeyRing([ALICE, BOB])
    assert ring.owner({name: f" {ALICE} "}) == ring.owner({"authorization": f"Bearer {ALICE}"})
    assert ring.owner({"authorization": "Basic eDp5", name: ALICE}) == ring.owner({name: ALICE})
    for headers in ({name: "wrong"}, {name: ""}, {name: f"Bearer {ALICE}"}, {**bearer("wrong"), name: ALICE}):
        assert (await served.client.get("/v1/models", headers=headers)).status_code == 401, headers
    submitted = await served.client.post("/generate", json={"prompt": "x"}, headers={name: ALICE})
    result = await served.client.get(submitted.json()["result_url"], headers=bearer(ALICE))
    assert result.status_code == 200, "the same key is the same owner, wherever it stands"


def test_weights_may_name_keys_or_users():
    settings = Settings(api_key=(ALICE,), scheduling_policy="fair", tenant_weights={ALICE: 2.0, "team": 3.0})
    weights = settings.engine_config().tenant_weights
    owner = KeyRing([ALICE]).owner({"x-api-key": ALICE})
    assert weights == {owner: 2.0, "team": 3.0}
