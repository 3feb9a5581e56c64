"""Web pages of others, and names that were made to resolve to a server without keys."""

import httpx
import openai
import pytest
from tables import table

from splitfuse.client import AsyncClient
from splitfuse.server.settings import Settings

PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
EVIL, FRIEND = "https://evil.example", "https://app.example.com"
BODY = {"prompt": "x", "max_tokens": 1}


async def ask(served, path="/generate", **headers):
    """Return the answer to a POST of a prompt, or to a GET of another path, with these headers."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    if path == "/generate":
        return await served.client.post(path, json=BODY, headers=headers)
    return await served.client.get(path, headers=headers)


def is_refused(response, kind):
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (403, "permission_error")
    assert error["code"] == f"{kind}_not_allowed"
    assert f"--allowed-{kind}s" in error["message"]
    assert ("--api-key" in error["message"]) == (kind == "host"), "with a key a page's preflight is a 401"
    assert response.headers["x-request-id"]
    assert not any(name.startswith("access-control") for name in response.headers)


HOSTS = ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example."]


@pytest.mark.parametrize("path", ["/generate", "/result/x", "/v1/models", "/stats", "/docs", "/", "/nope"])
async def test_a_name_that_is_not_ours(served, path):
    for host in (*HOSTS, "1.2.3.4.5"):
        is_refused(await ask(served, path, Host=host), "host")


async def test_names_and_addresses_that_cannot_be_rebound(served):
    for host in table(__file__, "hosts"):
        assert (await ask(served, Host=host)).status_code == 202, host


@pytest.mark.parametrize("settings", [Settings(host="gpu-box", allowed_hosts=("llm.example.com, Server",))])
async def test_names_that_are_allowed(served):
    for host in ("gpu-box:8000", "llm.example.com", "server:8000", "localhost"):
        assert (await ask(served, Host=host)).status_code == 202
    is_refused(await ask(served, Host="x.llm.example.com"), "host")


@pytest.mark.parametrize("settings", [Settings(allowed_hosts=("*",))])
async def test_any_name(served):
    assert (await ask(served, Host="evil.example")).status_code == 202
    is_refused(await ask(served, Host="evil.example", Origin=FRIEND), "origin")


async def test_monitors_may_call_the_server_as_they_know_it(served):
    for path in ("/health", "/ready", "/version", "/metrics"):
        assert (await ask(served, path, Host="server:8000")).status_code == 200


async def test_pages_of_another_origin(served):
    for headers in (
        *({"Origin": origin} for origin in (EVIL, "null", "http://localhost:1", "http://127.0.0.1")),
        {"Origin": EVIL, "Sec_Fetch_Site": "cross-site", "Content_Type": "text/plain"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
    ):
        is_refused(await ask(served, **headers), "origin")
        is_refused(await ask(served, "/result/x", **headers), "origin")
        assert served.engine.num_submitted == 0, headers


async def test_our_own_pages_and_what_is_no_page(served):
    own = {"Origin": served.url, "Sec_Fetch_Site": "same-origin"}
    for headers in ({}, own, {"Sec_Fetch_Site": "none"}):
        assert (await ask(served, **headers)).status_code == 202


async def test_a_link_from_elsewhere_can_be_followed_but_not_posted(served):
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert (await ask(served, "/docs", **link)).status_code == 200
    is_refused(await ask(served, **link), "origin")


async def test_clients_that_are_no_browsers(served):
    async with AsyncClient(served.url) as client:
        assert (await client.generate("x", max_tokens=1)).token_ids
    async with openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0) as client:
        assert (await client.models.list()).data
    port = httpx.URL(served.url).port
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"http://localhost:{port}/stats")).status_code == 200


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (Settings(allowed_origins=(f"http://localhost:3000,{FRIEND}",)), None),
        (Settings(allowed_origins=(f"http://localhost:3000,{FRIEND}",), api_key=("secret",)), "Bearer secret"),
    ],
    ids=["without keys", "with keys"],
)
async def test_pages_that_are_allowed(served, key):
    headers = {"Origin": FRIEND, "Sec-Fetch-Site": "cross-site"}
    preflight = await served.client.options("/generate", headers=headers | PREFLIGHT)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == FRIEND
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    answer = await served.client.post("/generate", json=BODY, headers=headers | ({"Authorization": key} if key else {}))
    assert answer.status_code == 202
    refusal = await served.client.post("/generate", json={}, headers=headers | ({"Authorization": key} if key else {}))
    assert refusal.status_code == 400
    for response in (answer, refusal):
        assert response.headers["access-control-allow-origin"] == FRIEND
        exposed = set(response.headers["access-control-expose-headers"].split(", "))
        assert exposed >= {"Location", "Retry-After", "X-Seq-Id", "X-Ignored-Fields", "X-Unenforced"}
        assert exposed >= {"openai-processing-ms", "x-ratelimit-remaining-requests", "request-id"}
    if key is None:
        is_refused(await ask(served, Origin=EVIL), "origin")
        is_refused(await served.client.options("/generate", headers={"Origin": EVIL} | PREFLIGHT), "origin")
    else:
        preflight = await served.client.options("/generate", headers={"Origin": EVIL} | PREFLIGHT)
        assert "access-control-allow-origin" not in preflight.headers


@pytest.mark.parametrize("settings", [Settings(allowed_origins=(FRIEND,))])
async def test_an_event_source_of_a_page_that_is_allowed(served):
    """A browser's EventSource: a GET without a preflight, which its page may read if the header says so."""
    url = (await served.client.post("/generate", json=BODY)).json()["stream_url"]
    headers = {
        "Origin": FRIEND,
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "cors",
        "Accept": "text/event-stream",
    }
    response = await served.client.get(url, headers=headers)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["access-control-allow-origin"] == FRIEND
    assert "event: done" in response.text


@pytest.mark.parametrize("settings", [Settings(allowed_origins=("*",))])
async def test_pages_of_every_origin(served):
    for headers in ({"Origin": EVIL}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}):
        response = await ask(served, **headers)
        assert response.status_code == 202
    assert (await ask(served, Origin=EVIL)).headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("settings", [Settings(api_key=("secret",))])
async def test_a_server_with_keys_asks_for_them_and_sends_no_cors_headers(served):
    headers = {"Origin": EVIL, "Host": "llm.example.com"}
    assert (await served.client.post("/generate", json=BODY, headers=headers)).status_code == 401
    assert (await served.client.options("/generate", headers=headers | PREFLIGHT)).status_code == 401
    response = await served.client.post("/generate", json=BODY, headers=headers | {"Authorization": "Bearer secret"})
    assert response.status_code == 202
    assert not any(name.startswith("access-control") for name in response.headers)


async def test_our_page_behind_a_proxy_that_changes_host_loads_and_says_why(served):
    """A bare proxy_pass of nginx sets Host to the server's address: the page was drawn, and its scripts were 403."""
    behind = {"Origin": "http://127.0.0.1:8080", "Sec_Fetch_Site": "same-origin"}
    for path in ("/page/chat.js", "/page/chat.css"):
        assert (await ask(served, path, **behind)).status_code == 200, path
    refused = await ask(served, **behind)
    is_refused(refused, "origin")
    assert "proxy_set_header Host $http_host" in refused.json()["error"]["message"]
    for path in ("/v1/models", "/stats", "/page/none.js"):
        is_refused(await ask(served, path, **behind), "origin")
