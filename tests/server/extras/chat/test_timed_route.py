"""Headers of OpenAI's answers: the time that they took, and the rest of the caller's limit."""

import pytest

from splitfuse.server.settings import Settings

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
RATES = ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests")


@pytest.mark.parametrize("fields", [CHAT, {**CHAT, "stream": True}, {}])
async def test_answers_say_how_long_they_took(served, fields):
    answer = await served.client.post("/v1/chat/completions", json=fields)
    assert answer.status_code == (200 if fields else 400)
    assert 0 <= int(answer.headers["openai-processing-ms"]) < 10_000
    assert not {*RATES} & {*answer.headers}


@pytest.mark.parametrize("settings", [Settings(max_unfinished_per_key=2, api_key=("mine", "yours"))])
async def test_answers_name_the_rest_of_the_limit(served):
    mine, yours = ({"Authorization": f"Bearer {key}"} for key in ("mine", "yours"))
    body = {"input": "hello", "background": True}
    served.engine.hold()
    answers = [await served.client.post("/v1/responses", json=body, headers=mine) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [tuple(answer.headers[name] for name in RATES) for answer in answers] == [("2", "1"), ("2", "0"), ("2", "0")]
    other = await served.client.get("/v1/responses/none", headers=yours)
    assert (other.status_code, other.headers[RATES[1]]) == (404, "2")
