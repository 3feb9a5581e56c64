"""llama.cpp's routes, as its clients send and read them."""

import pytest
from fake_engine import FakeTokenizer, answer_text
from serving import parse_events

PROMPT = "hello"
MESSAGES = [{"role": "user", "content": "Hello"}]


async def test_a_prompt_is_continued(served):
    body = {"prompt": PROMPT, "n_predict": 5, "return_tokens": True, "cache_prompt": True, "seed": -1}
    answer = (await served.client.post("/completion", json=body)).json()
    assert answer["content"] == answer_text(PROMPT, num_tokens=5)
    assert (answer["stop"], answer["stop_type"], answer["stopping_word"]) == (True, "limit", "")
    assert (len(answer["tokens"]), answer["tokens_predicted"], answer["tokens_evaluated"]) == (5, 5, len(PROMPT))
    assert answer["timings"]["predicted_n"] == 5


async def test_a_stream_ends_with_an_event_without_text(served):
    response = await served.client.post("/completion", json={"prompt": PROMPT, "n_predict": 5, "stream": True})
    *some, last = [event["data"] for event in parse_events(response.text)]
    assert "".join(event["content"] for event in some) == answer_text(PROMPT, num_tokens=5)
    assert {event["stop"] for event in some} == {False}
    assert (last["content"], last["stop"], last["tokens_predicted"]) == ("", True, 5)


@pytest.mark.parametrize("limit", [-1, None, 5000])
async def test_without_a_limit_all_that_fits(served, limit):
    response = await served.client.post("/completion", json={"prompt": PROMPT, "n_predict": limit})
    assert response.json()["tokens_predicted"] == 512 - len(PROMPT)
    assert response.headers.get("x-max-tokens") == (str(512 - len(PROMPT)) if limit == 5000 else None)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "x", "n_predict": "5"}, "n_predict"),
        ({"prompt": "x", "n_predict": 0}, "n_predict"),
        ({"prompt": "x", "n_probs": 1}, "n_probs"),
        ({"prompt": "x", "repeat_penalty": -1}, "repeat_penalty"),
        ({"prompt": "x", "grammar": 'root ::= "a"', "json_schema": {}}, "grammar"),
    ],
)
async def test_refusals_name_the_field(served, body, param):
    response = await served.client.post("/completion", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_the_template_is_applied(served):
    response = await served.client.post("/apply-template", json={"messages": MESSAGES})
    assert response.json() == {"prompt": FakeTokenizer().render_chat(MESSAGES)}


async def test_props(served):
    answer = (await served.client.get("/props")).json()
    assert answer["default_generation_settings"]["n_ctx"] == 512
    assert (answer["model_alias"], answer["modalities"]["vision"]) == ("splitfuse-demo-5m", False)
    assert answer["total_slots"] == 64
