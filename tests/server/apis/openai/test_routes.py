"""The OpenAI-shaped routes as the `openai` package sends and reads them."""

import asyncio
import json

import openai
import pytest
from fake_engine import FakeTokenizer, answer_text
from serving import parse_events

from splitfuse.server.settings import Settings

MODEL = "splitfuse-demo-5m"
MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
CHAT_PROMPT = FakeTokenizer().render_chat(MESSAGES)


async def raw_chunks(served, path, **fields):
    response = await served.client.post(f"/v1/{path}", json={"stream": True, **fields})
    assert response.status_code == 200, response.text
    events = parse_events(response.text)
    assert events[-1]["data"] == "[DONE]"
    return [event["data"] for event in events[:-1]]


async def test_models(client):
    listed = (await client.models.list()).data
    assert [model.id for model in listed] == [MODEL]
    assert listed[0].object == "model"
    assert listed[0].max_model_len == 512
    assert listed[0].owned_by == "splitfuse-demo"
    assert (await client.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError, match=MODEL):
        await client.models.retrieve("some/other")


@pytest.mark.parametrize("settings", [Settings(served_model_name="mine,other,claude-*")])
async def test_a_model_with_several_names(client):
    assert [model.id for model in (await client.models.list()).data] == ["mine", "other"]
    for name in ("mine", "other", "claude-opus"):
        assert (await client.models.retrieve(name)).id == name
        assert (await client.completions.create(model=name, prompt="x", max_tokens=1)).model == "mine"
    with pytest.raises(openai.NotFoundError, match=r"served: mine, other, claude-\*"):
        await client.completions.create(model="gpt", prompt="x")


async def test_completion(client):
    answer = await client.completions.create(model=MODEL, prompt="hello", max_tokens=5)
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    assert answer.choices[0].text == answer_text("hello", num_tokens=5)
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 5, 10)
    assert answer.usage.prompt_tokens_details.cached_tokens == 2


async def test_completion_has_16_tokens_by_default(client):
    assert (await client.completions.create(model=MODEL, prompt="hello")).usage.completion_tokens == 16


@pytest.mark.parametrize(
    "prompt", ["one", ["one"], ["one", "two"], list(b"one"), [list(b"one"), list(b"two")]], ids=str
)
async def test_kinds_of_prompt_with_two_outputs_each(client, prompt):
    answer = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=4, n=2)
    names = ["one"] if len(prompt) == 1 or isinstance(prompt, str) or isinstance(prompt[0], int) else ["one", "two"]
    expected = [answer_text(name, num_tokens=4, index=index) for name in names for index in range(2)]
    assert [choice.index for choice in answer.choices] == list(range(len(expected)))
    assert [choice.text for choice in answer.choices] == expected
    assert answer.usage.prompt_tokens == 3 * len(names)


async def test_completion_logprobs(client):
    answer = await client.completions.create(model=MODEL, prompt="hello", max_tokens=3, logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs.tokens == list(answer.choices[0].text)
    assert logprobs.token_logprobs == [-9999.0, -0.5, -0.5]
    top = {"a": -0.5, "b": -1.5}
    own = zip(logprobs.tokens, logprobs.token_logprobs, strict=True)
    assert logprobs.top_logprobs == [{token: logprob, **top} for token, logprob in own], "the token itself, always"
    assert logprobs.text_offset == [0, 1, 2]


async def test_completion_stream(client):
    stream = await client.completions.create(
        model=MODEL, prompt=["one", "two"], max_tokens=4, n=2, stream=True, stream_options={"include_usage": True}
    )
    texts = dict.fromkeys(range(4), "")
    reasons = {}
    chunks = [chunk async for chunk in stream]
    for chunk in chunks[:-1]:
        assert chunk.usage is None
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
    expected = [answer_text(name, num_tokens=4, index=index) for name in ("one", "two") for index in range(2)]
    assert list(texts.values()) == expected
    assert set(reasons.values()) == {"length"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].choices == []
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (6, 16)


@pytest.mark.parametrize("prompt", ["hello", list(b"hello")], ids=["text", "ids"])
async def test_echo_puts_the_prompt_before_the_answer(client, prompt):
    answer = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=3, echo=True, logprobs=1, n=2)
    for index, choice in enumerate(answer.choices):
        text = answer_text("hello", num_tokens=3, index=index)
        assert choice.text == "hello" + text
        assert choice.logprobs.tokens == list("hello" + text)
        assert choice.logprobs.token_logprobs == [None, *[-0.25] * 4, -9999.0, -0.5, -0.5]
        own = list(zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, strict=True))[1:]
        assert choice.logprobs.top_logprobs == [None, *({token: logprob, "a": -0.5} for token, logprob in own)]
        assert choice.logprobs.text_offset == list(range(8))
    assert answer.usage.completion_tokens == 6
    plain = await client.completions.create(model=MODEL, prompt=[prompt], max_tokens=3, echo=True)
    assert plain.choices[0].text == "hello" + answer_text("hello", num_tokens=3)
    assert plain.choices[0].logprobs is None


async def test_an_echo_of_a_truncated_prompt_is_what_was_read(client):
    answer = await client.completions.create(
        model=MODEL, prompt="hello", max_tokens=1, echo=True, extra_body={"truncate_prompt_tokens": 2}
    )
    assert answer.choices[0].text[:-1] == "lo"


async def test_scores_of_a_text_alone(client):
    """Evaluation harnesses generate nothing; they ask how likely the text is."""
    answer = await client.completions.create(model=MODEL, prompt=["hello", "you"], max_tokens=0, echo=True, logprobs=2)
    assert [choice.text for choice in answer.choices] == ["hello", "you"]
    assert answer.choices[1].logprobs.token_logprobs == [None, -0.25, -0.25]
    assert len(answer.choices[0].logprobs.tokens) == 5
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (8, 0, 8)


async def test_a_streamed_echo_comes_first(served):
    chunks = await raw_chunks(served, "completions", prompt=["one", "two"], max_tokens=2, echo=True, logprobs=0)
    for index, prompt in enumerate(["one", "two"]):
        choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert [choice["text"] for choice in choices] == [prompt, *answer_text(prompt, num_tokens=2)]
        assert choices[0]["logprobs"]["token_logprobs"] == [None, -0.25, -0.25]
        assert [choice["logprobs"]["text_offset"] for choice in choices[1:]] == [[3], [4]]


async def test_prompt_logprobs_in_the_shape_of_vllm(client, served):
    entry = {"101": {"logprob": -0.25, "rank": 3}, "97": {"logprob": -0.5, "rank": 1}}
    extra = {"prompt_logprobs": 1}
    answer = await client.completions.create(model=MODEL, prompt="hello", max_tokens=2, extra_body=extra)
    assert answer.choices[0].prompt_logprobs[:2] == [None, entry]
    assert len(answer.choices[0].prompt_logprobs) == 5
    chat = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=2, extra_body=extra)
    assert len(chat.prompt_logprobs) == len(CHAT_PROMPT)
    accepted = (await served.client.post("/generate", json={"prompt": "hello", "max_tokens": 2, **extra})).json()
    result = (await served.client.get(accepted["result_url"] + "?wait=60")).json()
    assert result["prompt_logprobs"] == answer.choices[0].prompt_logprobs
    assert "prompt_logprobs" not in (await served.client.post("/v1/completions", json={"prompt": "x"})).json()


async def test_stream_logprobs_carry_the_text_offset(served):
    chunks = await raw_chunks(served, "completions", prompt="hello", max_tokens=3, logprobs=0)
    assert [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in chunks] == [[0], [1], [2]]


async def test_usage_keys_only_if_asked_for(served):
    plain = await raw_chunks(served, "completions", prompt="hello", max_tokens=2)
    assert all("usage" not in chunk for chunk in plain)
    asked = await raw_chunks(
        served, "completions", prompt="hello", max_tokens=2, stream_options={"include_usage": True}
    )
    assert [chunk["usage"] is None for chunk in asked] == [True, True, False]


async def test_chat(client):
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=6)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    message = answer.choices[0].message
    assert (message.role, message.content) == ("assistant", answer_text(CHAT_PROMPT, num_tokens=6))
    assert answer.usage.prompt_tokens == len(CHAT_PROMPT)


async def test_chat_goes_to_the_end_of_the_context(client):
    answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.usage.total_tokens == 512


async def test_chat_parts_and_developer_role(client):
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]},
        {"role": "user", "content": "Hello"},
    ]
    answer = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=6)
    assert answer.choices[0].message.content == answer_text(CHAT_PROMPT, num_tokens=6)


async def test_chat_logprobs(client):
    answer = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=2, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs.content
    assert "".join(token.token for token in content) == answer.choices[0].message.content
    assert content[1].bytes == list(content[1].token.encode())
    assert [(top.token, top.logprob) for top in content[1].top_logprobs] == [("a", -0.5), ("b", -1.5)]


async def test_chat_stream(client):
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=5, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert (deltas[0].role, deltas[0].content) == ("assistant", "")
    assert all(delta.role is None for delta in deltas[1:])
    assert "".join(delta.content or "" for delta in deltas) == answer_text(CHAT_PROMPT, num_tokens=5)
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * 5 + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 5


async def test_end_without_a_token_has_a_chunk_of_its_own(served):
    served.engine.leave_out_last_token = True
    chunks = await raw_chunks(served, "chat/completions", messages=MESSAGES, max_tokens=2, n=2)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks].count("length") == 2
    assert chunks[-1]["choices"][0]["delta"] == {}
    chunks = await raw_chunks(served, "completions", prompt="hello", max_tokens=2)
    last = chunks[-1]["choices"][0]
    assert (last["text"], last["logprobs"], last["finish_reason"]) == ("", None, "length")


async def test_errors_are_typed(client, served):
    with pytest.raises(openai.BadRequestError) as info:
        await client.completions.create(model=MODEL, prompt="x", max_tokens=0)
    assert (info.value.param, info.value.type) == ("max_tokens", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="gpt-4", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as too_long:
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x" * 600}])
    assert (too_long.value.code, too_long.value.param) == ("context_length_exceeded", "messages")
    served.engine.queue_is_full = True
    with pytest.raises(openai.RateLimitError) as full:
        await client.completions.create(model=MODEL, prompt="x")
    assert full.value.response.headers["retry-after"] == "3"
    served.engine.fail_at, served.engine.queue_is_full = 1, False
    with pytest.raises(openai.InternalServerError):
        await client.completions.create(model=MODEL, prompt="x")


async def test_failure_inside_a_stream(client, served):
    served.engine.fail_at = 2
    stream = await client.completions.create(model=MODEL, prompt="hello", stream=True)
    seen = []

    async def read():
        async for chunk in stream:
            seen.append(chunk.choices[0].text)

    with pytest.raises(openai.APIError, match="internal error") as info:
        await read()
    assert "".join(seen) == answer_text("hello", num_tokens=2)
    assert info.value.body["type"] == "server_error"
    response = await served.client.post("/v1/completions", json={"prompt": "hello", "stream": True})
    assert "[DONE]" not in response.text
    assert "secret" not in response.text


async def test_a_disconnect_from_a_stream_aborts_every_prompt(client, served):
    served.engine.hold()
    stream = await client.completions.create(model=MODEL, prompt=["one", "two"], stream=True)
    await served.engine.allow(1)
    await anext(aiter(stream))
    await stream.close()
    await asyncio.wait_for(served.engine.abort_seen.wait(), 60)
    assert len(served.engine.aborted) == 2


async def test_a_disconnect_from_a_plain_answer_aborts(served, caplog):
    served.engine.hold()
    task = asyncio.create_task(served.client.post("/v1/completions", json={"prompt": "hello"}))
    await served.engine.submitted.wait()
    task.cancel()
    await asyncio.wait_for(served.engine.abort_seen.wait(), 60)
    assert (await served.client.get("/health")).status_code == 200
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_a_refusal_half_way_through_the_prompts_aborts_the_first(served):
    served.engine.hold()
    response = await served.client.post("/v1/completions", json={"prompt": [[1], [999]], "stream": True})
    assert response.status_code == 400
    assert len(served.engine.aborted) == 1


async def test_answers_are_plain_ascii_json(served):
    response = await served.client.post("/v1/completions", json={"prompt": [[255]], "max_tokens": 1})
    assert response.content.isascii()
    json.loads(response.content)


async def test_tokenize_and_detokenize(served):
    async def post(path, **fields):
        response = await served.client.post(path, json=fields)
        return response.status_code, response.json()

    assert await post("/tokenize", prompt="hi") == (200, {"tokens": [104, 105], "count": 2, "max_model_len": 512})
    assert (await post("/tokenize", messages=MESSAGES))[1]["count"] == len(CHAT_PROMPT)
    assert await post("/detokenize", tokens=[104, 105]) == (200, {"prompt": "hi"})
    assert await post("/detokenize", tokens=[]) == (200, {"prompt": ""})
    for path, fields in [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "x", "messages": MESSAGES}),
        ("/tokenize", {"prompt": 5}),
        ("/tokenize", {"prompt": "x", "other": 1}),
        ("/tokenize", {"prompt": "x", "add_special_tokens": 1}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": "x"}),
        ("/detokenize", {"tokens": [True]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [300]}),
        ("/detokenize", {"tokens": [10**30]}),
    ]:
        assert (await post(path, **fields))[0] == 400, (path, fields)
    assert (await post("/tokenize", prompt="x", model="other"))[0] == 404


async def test_a_stored_stream_goes_on_without_its_reader(served, client):
    fields = {"messages": MESSAGES, "max_tokens": 6, "store": True, "stream_options": {"include_usage": True}}
    served.engine.hold()
    async with served.client.stream("POST", "/v1/chat/completions", json={"stream": True, **fields}) as response:
        seq_id = response.headers["X-Seq-Id"]
    await served.engine.allow()
    kept = await client.chat.completions.retrieve(f"chatcmpl-{seq_id}")
    assert (kept.id, kept.choices[0].message.content) == (f"chatcmpl-{seq_id}", answer_text(CHAT_PROMPT, num_tokens=6))
    for _ in range(2):  # each reader gets all of it
        events = parse_events((await served.client.get(f"/v1/chat/completions/{seq_id}?stream=true")).text)
        deltas = [event["data"]["choices"][0]["delta"] for event in events[:-1] if event["data"]["choices"]]
        assert "".join(delta.get("content", "") for delta in deltas) == kept.choices[0].message.content
        assert events[-2]["data"]["usage"]["completion_tokens"] == 6
    assert (await served.client.delete(f"/result/{seq_id}")).status_code == 200
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.retrieve(seq_id)


async def test_only_stored_chats_are_found(served, client):
    submitted = (await served.client.post("/generate", json={"prompt": "x"})).json()["seq_id"]
    response = await served.client.post("/v1/chat/completions", json={"messages": MESSAGES, "stream": True})
    for seq_id in (submitted, response.headers["X-Seq-Id"], "x"):
        assert (await served.client.get(f"/v1/chat/completions/{seq_id}")).status_code == 404
