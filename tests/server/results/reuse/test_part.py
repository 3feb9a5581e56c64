"""An equal greedy or seeded request gets the earlier answer, streamed or not, and never another tenant's."""

import pytest
from fake_engine import answer_text
from serving import parse_events

from splitfuse.server.results.reuse import EXTENSION
from splitfuse.server.settings import Settings

PROMPT = "hello"
GREEDY = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0}


@pytest.fixture
def settings():
    return Settings(reuse_answers=True, api_key=("one", "two"))


async def ask(served, key="one", path="/generate", headers=None, **fields):
    headers = {"Authorization": f"Bearer {key}", "Prefer": "wait=60", **(headers or {})}
    response = await served.client.post(path, json=GREEDY | fields, headers=headers)
    assert response.status_code == 200, response.text
    return response


def answers_of(served):
    return served.service.part(EXTENSION.load(EXTENSION.part)).answers


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.0, "priority": 3, "timeout_ms": 9000},
        {"temperature": 1, "seed": 4},
        {"top_k": 1},
        {"n": 2},
    ],
    ids=str,
)
async def test_an_equal_request_is_not_computed_again(served, fields):
    first = (await ask(served, **fields)).json()
    second = (await ask(served, **fields)).json()
    assert served.engine.num_submitted == 1
    assert second["outputs"] == first["outputs"]
    assert "reused_tokens" not in first["usage"]
    assert second["usage"] == first["usage"] | {
        "reused_tokens": first["usage"]["completion_tokens"],
        "cached_tokens": 0,
    }
    assert second["seq_id"] != first["seq_id"]


@pytest.mark.parametrize("leave_out", [False, True])
async def test_streams_have_equal_events(served, leave_out):
    served.engine.leave_out_last_token = leave_out
    texts = [(await ask(served, stream=True)).text for _ in range(2)]
    first, second = ([event for event in parse_events(text) if event["event"] == "token"] for text in texts)
    assert first == second
    assert len(first) == 5
    assert parse_events(texts[1])[-1]["data"]["usage"]["reused_tokens"] == 5
    assert served.engine.num_submitted == 1


async def test_other_apis_say_so_in_their_usage(served):
    chat = {"prompt": None, "temperature": 0, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
    for path in ("/v1/chat/completions", "/v1/messages"):
        usages = [(await ask(served, path=path, **chat)).json()["usage"] for _ in range(2)]
        assert usages[1]["reused_tokens"] == 4
    assert served.engine.num_submitted == 1  # both APIs render one prompt


@pytest.mark.parametrize(
    "other",
    [
        {"key": "two"},
        {"temperature": 1},
        {"temperature": 1, "seed": 5},
        {"max_tokens": 4},
        {"prompt": "hello "},
        {"prompt": list(b"hello")},
        {"stop": ["x"]},
        {"cache_salt": "s"},
        {"logprobs": 0},
        {"prompt_logprobs": 0},
    ],
    ids=str,
)
async def test_another_request_is_computed(served, other):
    await ask(served)
    assert "reused_tokens" not in (await ask(served, **other)).json()["usage"]
    assert served.engine.num_submitted == 2


@pytest.mark.parametrize("fields", [{"temperature": 1}, {"prompt_logprobs": 1}], ids=str)
async def test_what_may_differ_is_never_reused(served, fields):
    for _ in range(2):
        await ask(served, **fields)
    assert served.engine.num_submitted == 2
    assert len(answers_of(served)) == 0


async def test_an_answer_that_did_not_end_is_not_kept(served):
    served.engine.fail_at = 2
    await ask(served)
    served.engine.fail_at = None
    assert (await ask(served)).json()["text"] == answer_text(PROMPT, num_tokens=5)
    assert served.engine.num_submitted == 2


async def test_other_weights_answer_anew(served):
    await ask(served)
    served.engine.fingerprint = "other"
    await ask(served)
    assert served.engine.num_submitted == 2


@pytest.mark.parametrize("settings", [Settings()], ids=["default"])
async def test_it_is_off_by_default(served):
    for _ in range(2):
        await ask(served)
    assert served.engine.num_submitted == 2


async def test_an_answer_of_other_weights_than_its_keys_is_not_kept(served):
    """A request may wait while the weights change, or run while they do."""
    engine = served.engine
    submit = engine.submit

    async def submit_later(*arguments, **options):
        engine.weights_version = 1
        return await submit(*arguments, **options)

    engine.submit = submit_later
    await ask(served)
    engine.weights_version = 2
    assert len(answers_of(served)) == 0
    engine.submit = submit
    await ask(served)
    assert len(answers_of(served)) == 1


async def test_an_answer_whose_parameters_changed_is_not_kept(served, monkeypatch):
    monkeypatch.setattr("splitfuse.server.jobs.job.Job.was_changed", True)
    await ask(served)
    assert len(answers_of(served)) == 0
