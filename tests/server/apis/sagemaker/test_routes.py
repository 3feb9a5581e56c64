"""/ping and /invocations, as Amazon SageMaker calls a container."""

import pytest

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "temperature": 0}
COMPLETION = {"prompt": "hello", "max_tokens": 3, "temperature": 0}


@pytest.mark.parametrize(
    ("body", "route"), [(CHAT, "/v1/chat/completions"), (COMPLETION, "/v1/completions")], ids=["chat", "completion"]
)
async def test_a_body_is_answered_like_on_its_own_route(served, body, route):
    answers = [await served.client.post(path, json={**body, "store": True}) for path in ("/invocations", route)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json()["choices"] == answers[1].json()["choices"]
    assert answers[0].headers["x-ignored-fields"] == "store"
    stream = await served.client.post("/invocations", json={**body, "stream": True})
    assert stream.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("body", [{}, {"inputs": "x"}, {"messages": 5}])
async def test_any_other_body_is_refused(served, body):
    answer = await served.client.post("/invocations", json=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_ping(served):
    assert (await served.client.get("/ping")).status_code == 200
    served.engine.is_draining = True
    assert (await served.client.get("/ping")).status_code == 503
