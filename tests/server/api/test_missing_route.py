"""Answers at paths without a route, and to methods that a path does not take."""

from itertools import product

from tables import table


async def test_a_404_says_what_to_do(served):
    missing = [*table(__file__, "missing"), ("/" + "x" * 5000, "GET / lists what there is")]
    for method, (path, text) in product(("GET", "POST"), missing):
        response = await served.client.request(method, path)
        assert response.status_code == 404, path
        error = response.json()["error"]
        assert error["type"] == "not_found_error"
        assert text in error["message"]
        assert len(error["message"]) < 200


async def test_a_405_names_the_methods(served):
    response = await served.client.get("/v1/chat/completions")
    assert response.headers["allow"] == "POST"
    assert response.json()["error"]["message"] == "this path takes POST, not GET"


async def test_an_unknown_result_looks_like_a_malformed_one(served):
    texts = {(await served.client.get(f"/result/{name}")).text for name in ("x", "a/b", "%2e%2e")}
    assert len(texts) == 1
    assert "result_not_found" in texts.pop()


async def test_a_slash_at_the_end_is_nothing(served):
    response = await served.client.post("/v1/completions/", json={"prompt": "x", "max_tokens": 1})
    assert response.status_code == 200, "and no redirect, which would lose the body"
    for path in ("/v1/models/", "/v1/models/splitfuse-demo-5m/", "/health/", "/docs//"):
        assert (await served.client.get(path)).status_code == 200, path


async def test_a_route_that_is_gone_names_what_replaces_it(served):
    for method, path, text in table(__file__, "gone"):
        response = await served.client.request(method, path, json={})
        assert response.status_code == 404, path
        assert text in response.json()["error"]["message"]
    refused = await served.client.delete("/")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD"), "a path that stays"
