"""The page's routes: for browsers, with keys, turned off, and their explanations."""

import asyncio

import pytest
from serving import parse_events, stream_events

from splitfuse.server.settings import Settings

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
KEY = {"Authorization": "Bearer alice"}
with_keys = pytest.mark.parametrize("settings", [Settings(api_key=("alice", "bob"))], ids=["keys"])


@pytest.mark.parametrize(("url", "name"), [("/", "chat"), ("/engine", "engine")])
async def test_a_browser_gets_the_page_and_all_that_it_names(served, url, name):
    page = await served.client.get(url, headers=HTML)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for path in ("/page/icon.svg", "/page/theme.css", f"/page/{name}.css", f"/page/{name}.js"):
        assert path[1:] in page.text
        assert (await served.client.get(path)).status_code == 200
    assert (await served.client.get(f"/page/{name}.js")).headers["content-type"].startswith("text/javascript")
    assert (await served.client.get("/page/icon.svg")).headers["content-type"].startswith("image/svg+xml")


async def test_programs_and_wrong_names_get_none(served):
    assert (await served.client.get("/", headers={"Accept": "application/json"})).text.startswith("{")
    for path in ("/page/", "/page/nothing.js", "/page/..%2fassets.py", "/page/%2e%2e/assets.py"):
        response = await served.client.get(path, headers=HTML)
        assert (response.status_code, response.headers["content-type"]) == (404, "application/json"), path


@pytest.mark.parametrize("settings", [Settings(page=False)], ids=["no page"])
async def test_no_page(served):
    assert (await served.client.get("/page/engine.js", headers=HTML)).status_code == 404
    assert (await served.client.get("/engine", headers=HTML)).status_code == 404
    assert "/page/" not in (await served.client.get("/", headers=HTML)).text


@with_keys
async def test_with_keys_the_page_is_open_and_nothing_else(served):
    assert (await served.client.get("/", headers=HTML)).status_code == 200
    assert (await served.client.get("/engine", headers=HTML)).status_code == 200
    assert (await served.client.get("/page/engine.js")).status_code == 200
    for path in ("/stats/stream", f"/result/{'x' * 32}/explain"):
        assert (await served.client.get(path, headers=HTML)).status_code == 401


@with_keys
async def test_an_explanation_is_its_owners(served):
    made = await served.client.post("/generate", json={"prompt": "x", "max_tokens": 2}, headers=KEY)
    url = made.json()["result_url"]
    await served.client.get(url + "?wait=60", headers=KEY)
    found = (await served.client.get(url + "/explain", headers=KEY)).json()
    assert sum(found["shares"].values()) == pytest.approx(found["e2e_s"])
    assert {"t", "what", "why"} <= set(found["timeline"][0])
    foreign = await served.client.get(url + "/explain", headers={"Authorization": "Bearer bob"})
    unknown = await served.client.get(f"/result/{'x' * 32}/explain", headers=KEY)
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.json() == unknown.json()


async def test_one_that_runs_is_explained_so_far(served):
    served.engine.hold()
    url = (await served.client.post("/generate", json={"prompt": "x"})).json()["result_url"]
    found = (await served.client.get(url + "/explain")).json()
    assert (found["status"], found["ttft_s"]) == ("queued", None)
    assert sum(found["shares"].values()) == pytest.approx(found["e2e_s"])
    await served.engine.allow()


async def test_several_outputs_have_an_explanation_each(served):
    url = (await served.client.post("/generate", json={"prompt": "x", "n": 3, "max_tokens": 2})).json()["result_url"]
    await served.client.get(url + "?wait=60")
    found = (await served.client.get(url + "/explain")).json()
    assert [output["index"] for output in found["outputs"]] == [0, 1, 2]
    assert found["e2e_s"] == max(output["e2e_s"] for output in found["outputs"])


async def test_steps_of_a_real_engine(live):
    """A request's record, its explanation and its result tell the same."""
    async with live.stream("GET", "/stats/stream") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = stream_events(response)
        assert (await anext(events))["event"] == "hello"
        fields = {"prompt": list(range(20, 420)), "max_tokens": 5, "ignore_eos": True}
        made = (await live.post("/generate", json=fields)).json()
        seen = {"requests": [], "steps": [], "ended": []}
        async with asyncio.timeout(60):
            async for event in events:
                seen.get(event["event"], []).extend(event["data"])
                if seen["ended"]:
                    break
    (shape,) = [request for request in seen["requests"] if request["id"] == made["seq_id"]]
    number = shape["number"]
    chunks = [row for step in seen["steps"] for row in step.get("chunks", ()) if row[0] == number]
    assert (chunks[0][1], sum(row[2] for row in chunks)) == (0, 400)
    decodes = [step["decodes"] for step in seen["steps"] if "decodes" in step]
    assert decodes[0] == [number]
    assert decodes == [[number] if decode is not True else True for decode in decodes]  # true: as in the step before
    assert len(decodes) == 4
    assert [number, "length"] in [ended[:2] for ended in seen["ended"]]
    result = (await live.get(made["result_url"])).json()
    found = (await live.get(f"{made['result_url']}/explain")).json()
    assert found["e2e_s"] == pytest.approx(result["timings"]["e2e_s"], abs=1e-3)
    assert sum(found["shares"].values()) == pytest.approx(found["e2e_s"], abs=1e-3)
    told = [entry["numbers"][:2] for entry in found["timeline"] if entry["what"] == "chunk"]
    assert told == [row[1:] for row in chunks]


async def test_a_disconnect_ends_the_gathering(live):
    async with live.stream("GET", "/stats/stream") as response:
        await anext(response.aiter_bytes())
    assert parse_events((await live.post("/generate", json={"prompt": "x", "max_tokens": 2, "stream": True})).text)
