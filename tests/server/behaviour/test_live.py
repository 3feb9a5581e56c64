"""The whole house: a server process with the demo model, asked over HTTP as users do."""

import asyncio
import time

import pytest
from serving import parse_events, stream_events

pytestmark = pytest.mark.both_forms
GREEDY = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
MODEL = "splitfuse-demo-5m"


async def submit(live, **fields):
    response = await live.post("/generate", json={**GREEDY, **fields})
    assert response.status_code == 202, response.text
    return response.json()["result_url"]


async def until_idle(live, *, seconds=120):
    """Poll the statistics until nothing runs and every block is free; there is no event for that."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        stats = (await live.get("/stats")).json()
        if stats["num_running"] == stats["num_waiting"] == stats["num_used_blocks"] == 0:
            return stats
        await asyncio.sleep(0.02)
    raise AssertionError(f"still busy: {stats['num_running']} running, {stats['num_used_blocks']} blocks used")


async def test_submit_and_poll(live):
    url = await submit(live)
    seen = set()
    while True:
        result = (await live.get(url)).json()
        seen.add(result["status"])
        if result["status"] not in ("queued", "running"):
            break
        await asyncio.sleep(0.01)
    assert result["status"] == "completed"
    assert seen <= {"queued", "running", "completed"}
    assert result["finish_reason"] == "length"
    assert len(result["token_ids"]) == 24
    assert result["timings"]["e2e_s"] >= result["timings"]["ttft_s"] >= result["timings"]["queue_s"] >= 0
    assert result["timings"]["tokens_per_s"] > 0


async def test_every_route_gives_the_same_text(live, sdk):
    polled = (await live.get(await submit(live) + "?wait=60")).json()
    events = parse_events((await live.post("/generate", json={**GREEDY, "stream": True})).text)
    fields = {"model": MODEL, "prompt": GREEDY["prompt"], "max_tokens": 24, "temperature": 0}
    extra = {"ignore_eos": True}
    plain = await sdk.completions.create(**fields, extra_body=extra)
    stream = await sdk.completions.create(**fields, extra_body=extra, stream=True)
    streamed = [chunk.choices[0].text async for chunk in stream]
    texts = {
        polled["text"],
        "".join(event["data"]["text"] for event in events[:-1]),
        events[-1]["data"]["text"],
        plain.choices[0].text,
        "".join(streamed),
    }
    assert len(texts) == 1
    assert [i for event in events[:-1] for i in event["data"]["token_ids"]] == polled["token_ids"]
    ids = (await live.post("/tokenize", json={"prompt": GREEDY["prompt"]})).json()["tokens"]
    assert plain.usage.prompt_tokens == polled["usage"]["prompt_tokens"] == len(ids)


async def test_prompt_of_ids(live):
    ids = (await live.post("/tokenize", json={"prompt": GREEDY["prompt"]})).json()["tokens"]
    from_text = (await live.get(await submit(live) + "?wait=60")).json()
    from_ids = (await live.get(await submit(live, prompt=ids) + "?wait=60")).json()
    assert from_ids["token_ids"] == from_text["token_ids"]
    detokenized = (await live.post("/detokenize", json={"tokens": from_ids["token_ids"]})).json()
    assert detokenized["prompt"] == from_text["text"]


async def test_either_end_of_a_prompt_and_vllms_facts_of_its_tokenizer(live):
    facts = (await live.get("/tokenizer_info")).json()
    assert len((await live.post("/tokenize", json={"prompt": facts["eos_token"]})).json()["tokens"]) == 1
    ids = (await live.post("/tokenize", json={"prompt": GREEDY["prompt"]})).json()["tokens"]
    for side, kept in (("left", ids[-2:]), ("right", ids[:2])):
        cut = {**GREEDY, "truncate_prompt_tokens": 2, "truncation_side": side, "return_token_ids": True}
        answer = (await live.post("/v1/completions", json=cut)).json()
        assert answer["choices"][0]["prompt_token_ids"] == kept


async def test_chat(sdk):
    messages = [{"role": "user", "content": "Tell me a story."}]
    fields = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 20}
    plain = await sdk.chat.completions.create(**fields, logprobs=True, top_logprobs=2)
    stream = await sdk.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == plain.choices[0].message.content
    assert text
    assert chunks[-2].choices[0].finish_reason == plain.choices[0].finish_reason
    assert chunks[-1].usage.total_tokens == plain.usage.total_tokens
    logprobs = plain.choices[0].logprobs.content
    assert all(token.logprob <= 0 for token in logprobs)
    assert all(token.token == token.top_logprobs[0].token for token in logprobs)  # greedy


@pytest.mark.parametrize("echo", [False, True])
async def test_offsets_count_characters_of_several_tokens(sdk, echo):
    """They were the sums of the tokens' texts, in which each half of a character is one."""
    text = "👩‍🚀 हिन्दी ไทย end"
    more = {"structured_outputs": {"choice": [text]}}
    fields = {"model": MODEL, "prompt": "é👩", "max_tokens": 80, "temperature": 0, "logprobs": 1, "echo": echo}
    whole = (await sdk.completions.create(**fields, extra_body=more)).choices[0]
    chunks = [chunk async for chunk in await sdk.completions.create(**fields, stream=True, extra_body=more)]
    streamed = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices and chunk.choices[0].logprobs]
    tokens, offsets = whole.logprobs.tokens, whole.logprobs.text_offset
    assert [offset for part in streamed for offset in part.text_offset] == offsets
    assert whole.text.endswith(text)
    assert max(offsets) < len(whole.text)
    for token, offset in zip(tokens, offsets, strict=True):
        assert "\ufffd" in token or whole.text.startswith(token, offset), (token, offset)


async def test_seeded_outputs_differ_from_each_other_but_not_between_runs(live):
    fields = {"temperature": 1.0, "seed": 7, "n": 3}
    first = (await live.get(await submit(live, **fields) + "?wait=60")).json()
    second = (await live.get(await submit(live, **fields) + "?wait=60")).json()
    texts = [output["text"] for output in first["outputs"]]
    assert texts == [output["text"] for output in second["outputs"]]
    assert len(set(texts)) == 3
    assert first["usage"]["completion_tokens"] == 72


async def test_stop_string(live):
    text = (await live.get(await submit(live) + "?wait=60")).json()["text"]
    word = text.split()[3]
    result = (await live.get(await submit(live, stop=word) + "?wait=60")).json()
    assert (result["finish_reason"], result["stop_reason"]) == ("stop", word)
    assert result["text"] == text[: text.index(word)]


@pytest.mark.usefixtures("slow")
async def test_a_disconnect_frees_the_blocks(live):
    await until_idle(live)
    async with live.stream("POST", "/generate", json={**GREEDY, "max_tokens": 450, "stream": True}) as stream:
        events = stream_events(stream)
        for _ in range(3):
            await anext(events)
        assert (await live.get("/stats")).json()["num_used_blocks"] > 0
        url = stream.headers["location"]
    await until_idle(live)
    result = (await live.get(url)).json()
    assert (result["status"], result["finish_reason"]) == ("cancelled", "abort")
    assert 3 <= len(result["token_ids"]) < 450


@pytest.mark.usefixtures("slow")
async def test_a_disconnect_from_openai_frees_the_blocks(live, sdk):
    stream = await sdk.completions.create(model=MODEL, prompt=["One", "Two"], max_tokens=450, stream=True)
    await anext(aiter(stream))
    await stream.close()
    await until_idle(live)
    pending = asyncio.create_task(live.post("/v1/completions", json={**GREEDY, "max_tokens": 450}))
    while (await live.get("/stats")).json()["num_running"] == 0:
        pass
    pending.cancel()
    await until_idle(live)


@pytest.mark.usefixtures("slow")
async def test_delete_gives_the_blocks_back(live):
    url = await submit(live, max_tokens=450)
    assert (await live.delete(url)).json()["status"] == "cancelled"
    await until_idle(live)
    assert (await live.get(url)).status_code == 404


async def test_reattaching_from_every_cut(live):
    url = await submit(live)
    whole = (await live.get(url + "/stream")).text
    events = parse_events(whole)
    for cut in range(len(events)):
        rest = (await live.get(f"{url}/stream", headers={"Last-Event-ID": str(cut)})).text
        kept = whole.split("\n\n")[: cut + 1]
        assert "\n\n".join(kept) + "\n\n" + rest == whole


async def test_a_stream_cut_while_it_runs_goes_on_without_a_gap(live):
    url = await submit(live, max_tokens=60)
    token_ids, last = [], None
    while True:
        headers = {} if last is None else {"Last-Event-ID": last}
        async with live.stream("GET", url + "/stream", headers=headers) as stream:
            num_read = 0
            async for event in stream_events(stream):
                last = event["id"]
                if event["event"] == "done":
                    break
                token_ids += event["data"]["token_ids"]
                num_read += 1
                if num_read == 7:
                    break
            if event["event"] == "done":
                break
    assert token_ids == event["data"]["token_ids"]
    assert len(token_ids) == 60


async def test_long_poll_beside_a_stream(live):
    url = await submit(live, max_tokens=40)
    polled, streamed = await asyncio.gather(live.get(url + "?wait=60"), live.get(url + "/stream"))
    assert polled.json() == parse_events(streamed.text)[-1]["data"]


async def test_many_at_once(live):
    """More requests than the cache holds at once get the answers that they would have got alone."""
    prompts = [f"Once there was a {word}" for word in ("fox", "girl", "king", "cat", "tree", "boat", "bird", "boy")]
    alone = [
        (await live.get(await submit(live, prompt=prompt, max_tokens=80) + "?wait=60")).json() for prompt in prompts
    ]
    urls = [await submit(live, prompt=prompt, max_tokens=80) for prompt in prompts for _ in range(4)]
    together = [(await live.get(url + "?wait=60")).json() for url in urls]
    assert [r["token_ids"] for r in together] == [r["token_ids"] for r in alone for _ in range(4)]
    await until_idle(live)


async def test_metrics_move(live):
    def value(text, name):
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("splitfuse:" + name))

    before = (await live.get("/metrics")).text
    await live.get(await submit(live) + "?wait=60")
    after = (await live.get("/metrics")).text
    grown = {
        name: value(after, name) - value(before, name)
        for name in (
            "generation_tokens_total",
            "request_success_total",
            "time_to_first_token_seconds_count",
            "inter_token_latency_seconds_count",
            "e2e_request_latency_seconds_count",
            "prefix_cache_queries_total",
        )
    }
    num_prompt_tokens = len((await live.post("/tokenize", json={"prompt": GREEDY["prompt"]})).json()["tokens"])
    assert grown == {
        "generation_tokens_total": 24,
        "request_success_total": 1,
        "time_to_first_token_seconds_count": 1,
        "inter_token_latency_seconds_count": 23,
        "e2e_request_latency_seconds_count": 1,
        "prefix_cache_queries_total": num_prompt_tokens,
    }


async def test_bodies_as_vllmini_sends_them(live):
    """{prompt, max_length}, the second counting prompt and output; then /result until it is there."""
    accepted = (await live.post("/generate", json={"prompt": "Once upon a time", "max_length": 20})).json()
    result = (await live.get(f"/result/{accepted['seq_id']}?wait=60")).json()
    assert result["status"] == "completed"
    assert result["usage"]["total_tokens"] <= 20
    if result["finish_reason"] == "length":
        assert result["usage"]["total_tokens"] == 20


SCRIPTS = [
    *("Привет, мир", "Καλημέρα κόσμε", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया", "你好，世界", "こんにちは世界"),
    *("안녕하세요 세계", "สวัสดีชาวโลก", "Voilà, naïve", "👩‍👩‍👧‍👦 🇩🇪👍🏽"),
]


async def test_deltas_join_to_the_decoding_in_every_script(live):
    """Tokens are sampled almost evenly, so most of them end within characters."""

    async def check(prompt, seed):
        body = {"prompt": prompt, "temperature": 100, "seed": seed, "max_tokens": 80, "ignore_eos": True}
        response = await live.post("/generate", json={**body, "stream": True, "skip_special_tokens": False})
        events = parse_events(response.text)
        text = "".join(event["data"]["text"] for event in events[:-1])
        ids = (await live.post("/tokenize", json={"prompt": prompt})).json()["tokens"]
        whole = (await live.post("/detokenize", json={"tokens": ids + events[-1]["data"]["token_ids"]})).json()
        assert prompt + text == whole["prompt"]
        assert events[-1]["data"]["text"] == text

    await asyncio.gather(*(check(prompt, seed) for prompt in SCRIPTS for seed in range(3)))


async def test_chat_and_responses_give_the_same_answer(live, sdk):
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Tell me a story."}]
    chat = await sdk.chat.completions.create(model=MODEL, messages=messages, max_tokens=20, temperature=0)
    response = await sdk.responses.create(
        model=MODEL, instructions="Be kind.", input="Tell me a story.", max_output_tokens=20, temperature=0
    )
    assert response.output_text == chat.choices[0].message.content
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    in_background = await sdk.responses.create(
        model=MODEL,
        instructions="Be kind.",
        input="Tell me a story.",
        background=True,
        max_output_tokens=20,
        temperature=0,
    )
    result = (await live.get(f"/result/{in_background.id}?wait=60")).json()
    assert result["text"] == response.output_text
    assert (await sdk.responses.retrieve(in_background.id)).output_text == response.output_text
    going_on = await sdk.responses.create(
        model=MODEL, previous_response_id=in_background.id, input="And then?", max_output_tokens=5, temperature=0
    )
    assert going_on.usage.input_tokens > response.usage.input_tokens


async def test_prompt_logprobs_add_up_to_those_of_the_output(live, sdk):
    """A text has the same logprobs as a prompt that it had as output."""
    first = await sdk.completions.create(
        model=MODEL, prompt=GREEDY["prompt"], max_tokens=12, temperature=0, logprobs=0, extra_body={"ignore_eos": True}
    )
    ids = (await live.post("/tokenize", json={"prompt": GREEDY["prompt"]})).json()["tokens"]
    url = await submit(live, max_tokens=12)
    sampled = (await live.get(url + "?wait=60")).json()["token_ids"]
    again = await sdk.completions.create(
        model=MODEL, prompt=ids + sampled, max_tokens=0, logprobs=0, echo=True, temperature=0
    )
    scores = again.choices[0].logprobs.token_logprobs
    assert scores[0] is None
    assert scores[len(ids) :] == pytest.approx(first.choices[0].logprobs.token_logprobs, abs=1e-3)
