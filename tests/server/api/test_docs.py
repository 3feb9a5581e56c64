"""GET /: the routes for programs, a page for people."""

import re

import pytest

from splitfuse.server.settings import Settings


async def test_what_asks_for_json_gets_the_routes(served):
    for headers in ({}, {"Accept": "application/json"}):
        answer = (await served.client.get("/", headers=headers)).json()
        assert (answer["name"], answer["model"], answer["docs"]) == ("splitfuse", "splitfuse-demo-5m", "/docs")
        assert {"POST /generate", "GET /v1/models", "DELETE /result/{seq_id}"} <= set(answer["routes"])
    assert (await served.client.head("/")).status_code == 200


@pytest.mark.parametrize("settings", [Settings(served_model_name="<b>&", page=False)])
async def test_without_the_page_a_browser_gets_one_that_loads_nothing(served):
    response = await served.client.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert response.headers["content-type"].startswith("text/html")
    assert "&lt;b&gt;&amp;" in response.text
    assert not re.search(r"(https?:)?//[a-z]|src=|<link|@import", response.text)
    for path in re.findall('href="(.*?)"', response.text):
        assert (await served.client.get(path)).status_code == 200
