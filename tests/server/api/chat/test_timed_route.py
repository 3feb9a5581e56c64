"""Headers of OpenAI's and Anthropic's answers: the time that they took, and the rest of the caller's limit."""

import pytest

from splitfuse.engine.config import EngineConfig, ResolvedConfig
from splitfuse.server.settings import Settings

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
MOST = 1024 + 64  # --max-queue-size and --max-num-seqs
ANTHROPIC_RATES = ("anthropic-ratelimit-requests-limit", "anthropic-ratelimit-requests-remaining")
RATES = ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests")


@pytest.mark.parametrize("fields", [CHAT, {**CHAT, "stream": True}, {}])
async def test_answers_say_how_long_they_took(served, fields):
    answer = await served.client.post("/v1/chat/completions", json=fields)
    assert answer.status_code == (200 if fields else 400)
    assert 0 <= int(answer.headers["openai-processing-ms"]) < 10_000
    assert [answer.headers[name] for name in RATES][:1] == [str(MOST)]


async def test_the_limit_is_of_the_device_in_use(served):
    served.engine.config = ResolvedConfig.of(EngineConfig(), device="cuda")
    answer = await served.client.post("/v1/chat/completions", json=CHAT)
    assert answer.headers[RATES[0]] == str(1024 + 256)


async def test_answers_name_the_rest_of_the_queue(served):
    served.engine.hold()
    for path, names in (("/v1/completions", RATES), ("/v1/messages", ANTHROPIC_RATES)):
        num_before = served.engine.num_unfinished
        body = {**CHAT, "stream": True} | ({"prompt": "hello"} if path == "/v1/completions" else {})
        body.pop("messages" if path == "/v1/completions" else "prompt", None)
        async with served.client.stream("POST", path, json=body) as answer:
            assert [int(answer.headers[name]) for name in names] == [MOST, MOST - num_before - 1]


@pytest.mark.parametrize("settings", [Settings(api_key=("mine", "yours"), admin_key=("all",))])
async def test_a_key_that_may_not_read_sums_sees_its_own_requests(served):
    served.engine.hold()
    headers = {"Authorization": "Bearer mine"}
    async with served.client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}, headers=headers):
        other = await served.client.post("/v1/chat/completions", json={}, headers={"Authorization": "Bearer yours"})
        assert (other.status_code, other.headers[RATES[1]]) == (400, str(MOST))


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
