"""TGI's routes, as Hugging Face's clients send and read them."""

import pytest
from fake_engine import answer_text
from serving import parse_events

PROMPT = "hello"


async def post(served, path="/", **parameters):
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 5, **parameters}}
    response = await served.client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response


async def test_a_text_is_continued(served):
    text = answer_text(PROMPT, num_tokens=5)
    assert (await post(served)).json() == [{"generated_text": text}]
    (full,) = (await post(served, return_full_text=True, details=True, seed=7)).json()
    assert full["generated_text"] == PROMPT + text
    details = full["details"]
    assert (details["finish_reason"], details["generated_tokens"], details["seed"]) == ("length", 5, 7)
    assert "".join(token["text"] for token in details["tokens"]) == text
    assert all(token["logprob"] <= 0 for token in details["tokens"])


async def test_generate_takes_its_body_by_the_field(served):
    text = answer_text(PROMPT, num_tokens=5)
    answer = await post(served, "/generate", repetition_penalty=1.1, watermark=True)
    assert answer.json() == {"generated_text": text}
    assert answer.headers["X-Ignored-Fields"] == "parameters.watermark"
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 5}, "stream": True}
    events = parse_events((await served.client.post("/generate", json=body)).text)
    assert events[-1]["data"]["generated_text"] == text
    for fields, param in (({"prompt": PROMPT, "inputs": PROMPT}, "inputs"), ({"inputs": 5}, "inputs")):
        refused = await served.client.post("/generate", json=fields)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert len(served.service.results) == 0


@pytest.mark.parametrize("path", ["/generate_stream", "/"])
async def test_a_stream_has_an_event_per_token_and_the_text_in_the_last(served, path):
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 5}, "stream": True}
    response = await served.client.post(path, json=body)
    *some, last = [event["data"] for event in parse_events(response.text)]
    assert [event["generated_text"] for event in some] == [None] * 4
    assert [event["index"] for event in (*some, last)] == [1, 2, 3, 4, 5]
    assert last["generated_text"] == "".join(event["token"]["text"] for event in (*some, last))
    assert last["generated_text"] == answer_text(PROMPT, num_tokens=5)
    assert last["details"] == {
        "finish_reason": "length",
        "generated_tokens": 5,
        "seed": None,
        "input_length": len(PROMPT),
    }


async def test_a_failure_inside_the_stream_is_an_event(served):
    served.engine.fail_at = 2
    response = await served.client.post("/generate_stream", json={"inputs": PROMPT})
    assert parse_events(response.text)[-1]["data"]["error_type"] == "generation"


@pytest.mark.parametrize(
    ("parameters", "temperature"), [({}, 0), ({"do_sample": True}, 1), ({"top_k": 5}, 1), ({"temperature": 0.5}, 0.5)]
)
async def test_it_is_greedy_unless_a_field_asks_for_samples(served, parameters, temperature, monkeypatch):
    got = []
    submit = served.engine.submit

    async def recorded(prompt, params, *args, **more):
        got.append(params)
        return await submit(prompt, params, *args, **more)

    monkeypatch.setattr(served.engine, "submit", recorded)
    await post(served, **parameters)
    assert [params.temperature for params in got] == [temperature]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "inputs"),
        ({"inputs": "x", "parameters": {"max_new_tokens": 0}}, "parameters.max_new_tokens"),
        ({"inputs": "x", "parameters": {"best_of": 2}}, "parameters.best_of"),
        ({"inputs": "x", "parameters": {"max_new_tokns": 5}}, "parameters.max_new_tokns"),
        ({"inputs": "x", "parameters": {"grammar": {"type": "regex"}}}, "parameters.grammar.value"),
    ],
)
async def test_refusals_name_the_field(served, body, param):
    error = (await served.client.post("/generate_stream", json=body)).json()["error"]
    assert error["param"] == param


async def test_a_limit_beyond_the_context_is_cut_and_said(served):
    response = await post(served, max_new_tokens=5000)
    assert response.headers["x-max-tokens"] == str(512 - len(PROMPT))


async def test_info(served):
    answer = (await served.client.get("/info")).json()
    assert (answer["model_id"], answer["max_total_tokens"]) == ("splitfuse-demo-5m", 512)


async def test_the_index_is_still_there(served):
    await post(served)
    assert (await served.client.get("/")).json()["name"] == "splitfuse"
    refused = await served.client.delete("/")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, POST")
