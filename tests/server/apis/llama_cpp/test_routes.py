"""llama.cpp's routes, as its clients send and read them."""

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
    found = answer["generation_settings"]
    assert (found["n_predict"], found["seed"], found["stop"], found["stream"]) == (5, 2**32 - 1, [], False)


async def test_slots_are_places_for_sequences(served):
    slots = (await served.client.get("/slots")).json()
    assert [slot["id"] for slot in slots] == list(range(served.engine.config.max_num_seqs))
    assert not any(slot["is_processing"] for slot in slots)


async def test_likeliest_tokens_whole_and_in_a_stream(served):
    body = {"prompt": PROMPT, "n_predict": 3, "n_probs": 2, "logit_bias": [[5, -1.5], [6, False]]}
    whole = (await served.client.post("/completion", json=body)).json()["completion_probabilities"]
    assert served.engine.params[-1].logit_bias == {5: -1.5, 6: -100}
    assert [item["token"] for item in whole] == list(answer_text(PROMPT, num_tokens=3))
    top = [
        {"id": 97, "token": "a", "bytes": [97], "logprob": -0.5},
        {"id": 98, "token": "b", "bytes": [98], "logprob": -1.5},
    ]
    assert [item["top_logprobs"] for item in whole] == [top] * 3
    response = await served.client.post("/completion", json={**body, "stream": True})
    events = [event["data"] for event in parse_events(response.text)]
    assert [item for event in events for item in event.get("completion_probabilities", [])] == whole


async def test_forms_of_a_prompt_and_lists_of_them(served):
    for prompt in (["hel", 108, 111], {"prompt_string": PROMPT}, list(PROMPT.encode())):
        answer = (await served.client.post("/completion", json={"prompt": prompt, "n_predict": 3})).json()
        assert answer["content"] == answer_text(PROMPT, num_tokens=3), prompt
    prompts = ["hi", PROMPT, list(PROMPT.encode()), {"prompt_string": "ho"}]
    answers = (await served.client.post("/completion", json={"prompt": prompts, "n_predict": 3})).json()
    texts = [answer_text(text, num_tokens=3) for text in ("hi", PROMPT, PROMPT, "ho")]
    assert [(answer["index"], answer["content"]) for answer in answers] == list(enumerate(texts))
    refused = await served.client.post("/completion", json={"prompt": prompts, "stream": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")


async def test_a_prompt_that_is_too_long_has_llama_cpps_type(served):
    response = await served.client.post("/completion", json={"prompt": PROMPT * 200})
    assert (response.status_code, response.json()["error"]["type"]) == (400, "exceed_context_size_error")


async def test_tokenize_takes_llama_cpps_fields(served):
    answer = (await served.client.post("/tokenize", json={"content": "hi", "add_special": False})).json()
    assert answer["tokens"] == [104, 105]
    pieces = (await served.client.post("/tokenize", json={"content": "hi", "with_pieces": True})).json()
    assert pieces["tokens"] == [{"id": 104, "piece": "h"}, {"id": 105, "piece": "i"}]
    assert (await served.client.post("/tokenize", json={"content": "hi", "prompt": "hi"})).status_code == 400


async def test_openais_routes_without_v1(served):
    for version in ("", "/v1"):
        assert (await served.client.get(f"{version}/models")).status_code == 200
        for path, body in (("/completions", {"prompt": PROMPT}), ("/chat/completions", {"messages": MESSAGES})):
            response = await served.client.post(version + path, json={**body, "max_tokens": 3})
            assert response.status_code == 200, version + path


async def test_a_stream_ends_with_an_event_without_text(served):
    response = await served.client.post("/completion", json={"prompt": PROMPT, "n_predict": 5, "stream": True})
    *some, last = [event["data"] for event in parse_events(response.text)]
    assert "".join(event["content"] for event in some) == answer_text(PROMPT, num_tokens=5)
    assert {event["stop"] for event in some} == {False}
    assert (last["content"], last["stop"], last["tokens_predicted"]) == ("", True, 5)


async def test_without_a_limit_all_that_fits(served):
    for limit in (-1, None, 5000):
        response = await served.client.post("/completion", json={"prompt": PROMPT, "n_predict": limit})
        assert response.json()["tokens_predicted"] == 512 - len(PROMPT)
        assert response.headers.get("x-max-tokens") == (str(512 - len(PROMPT)) if limit == 5000 else None)


async def test_refusals_name_the_field(served):
    for fields, param in [
        *(({"n_predict": "5"}, "n_predict"), ({"n_predict": 0}, "n_predict"), ({"n_probs": 21}, "n_probs")),
        *(({"logit_bias": [[1]]}, "logit_bias"), ({"prompt": [{"prompt_string": "x"}, 5]}, "prompt")),
        *(({"prompt": ["x"] * 17}, "prompt"), ({"repeat_penalty": -1}, "repeat_penalty"), ({}, "prompt")),
        ({"grammar": 'root ::= "a"', "json_schema": {}}, "grammar"),
    ]:
        response = await served.client.post("/completion", json={"prompt": "x", **fields} if fields else {})
        assert (response.status_code, response.json()["error"]["param"]) == (400, param), fields


async def test_the_template_is_applied(served):
    response = await served.client.post("/apply-template", json={"messages": MESSAGES})
    assert response.json() == {"prompt": FakeTokenizer().render_chat(MESSAGES)}


async def test_props(served):
    answer = (await served.client.get("/props")).json()
    assert answer["default_generation_settings"]["n_ctx"] == 512
    assert (answer["model_alias"], answer["modalities"]["vision"]) == ("splitfuse-demo-5m", False)
    assert answer["total_slots"] == 64
