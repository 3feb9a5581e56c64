"""POST /fork continues a kept answer from any token; GET /result/{seq_id}/tokens shows what else was likely."""

import asyncio
import math

import pytest
from serving import parse_events, ready_client

from splitfuse.engine import LLM
from splitfuse.engine.errors import InvalidRequestError
from splitfuse.engine.extras.receipts.receipt import Receipt
from splitfuse.server.app import build_app
from splitfuse.server.settings import Settings

PROMPT = {"prompt": "Once upon a time", "max_tokens": 24, "seed": 7, "temperature": 1.0, "ignore_eos": True}


async def answered(live, path, **body):
    """Submit, and return the result."""
    response = await live.post(path, json=body)
    assert response.status_code == 202, response.text
    return (await live.get(response.json()["result_url"], params={"wait": 60})).json()


@pytest.mark.parametrize(
    "more",
    [
        {"n": 3},
        {"stop": ["zzz", "q"], "logprobs": 2},
        {"structured_outputs": {"regex": "[a-z ]{30,60}"}, "ignore_eos": False},
    ],
    ids="+".join,
)
async def test_without_a_change_the_rest_is_the_same(live, more):
    parent = await answered(live, "/generate", **PROMPT | more)
    for output in parent["outputs"]:
        num_tokens = len(output["token_ids"])
        for at in (0, 1, num_tokens // 2, num_tokens - 1, num_tokens):
            fork = await answered(live, "/fork", seq_id=parent["seq_id"], output=output["index"], at=at)
            assert fork["token_ids"] == output["token_ids"], at
            assert (fork["text"], fork["finish_reason"]) == (output["text"], output["finish_reason"])
            assert fork["usage"]["completion_tokens"] == num_tokens


async def test_a_fork_can_be_streamed(live):
    parent = await answered(live, "/generate", **PROMPT)
    response = await live.post("/fork", json={"seq_id": parent["seq_id"], "at": 6, "stream": True})
    *tokens, done = parse_events(response.text)
    assert done["data"]["token_ids"] == parent["token_ids"]
    assert tokens[0]["data"]["token_ids"] == parent["token_ids"][:6]
    assert "".join(event["data"]["text"] for event in tokens) == parent["text"]
    again = await answered(live, "/fork", seq_id=response.headers["X-Seq-Id"])
    assert again["token_ids"] == parent["token_ids"]


async def test_llms_fork_and_this_one_are_equal(live):
    parent = await answered(live, "/generate", **PROMPT)
    with LLM("demo", dtype="float32", num_kv_blocks=32, max_model_len=512) as llm:
        [own] = llm.generate(PROMPT["prompt"], **{name: value for name, value in PROMPT.items() if name != "prompt"})
        for change in (
            {"at": 9},
            {"at": 9, "seed": 3},
            {"at": 4, "append_text": " cat", "temperature": 0.5},
            {"at": 5, "append_token_ids": [300, 20], "presence_penalty": 1.5},
            {"at": 10, "temperature": 0, "max_tokens": 14},
            {"max_tokens": 30},
            {"at": 24},
        ):
            fork = await answered(live, "/fork", seq_id=parent["seq_id"], **change)
            [output] = llm.fork(own, **change).outputs
            assert (fork["token_ids"], fork["text"]) == (output.token_ids, output.text), change


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"at": 25}, "at"),
        ({"output": 1}, "output"),
        ({"append_token_ids": [10**6]}, "append_token_ids"),
        ({"append_token_ids": [1], "append_text": "x"}, "append_text"),
        ({"max_tokens": 20}, "max_tokens"),  # there is no token left
    ],
)
async def test_what_cannot_be_forked_is_named(live, change, param):
    parent = await answered(live, "/generate", **PROMPT)
    response = await live.post("/fork", json={"seq_id": parent["seq_id"], **change})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_a_forks_receipt_is_verified_with_its_parents(live):
    parent = await answered(live, "/generate", **PROMPT | {"n": 2})
    change = {"output": 1, "at": 8, "append_text": " cat", "temperature": 0, "receipt": True}
    fork = await answered(live, "/fork", seq_id=parent["seq_id"], **change)
    again = await answered(live, "/fork", seq_id=fork["seq_id"], at=12, seed=5, temperature=1.0, receipt=True)
    stated = again["receipt"]["parent"]
    assert (stated["seq_id"], stated["at"], stated["parent"]["seq_id"]) == (fork["seq_id"], 12, parent["seq_id"])
    assert (stated["parent"]["output"], stated["parent"]["at"]) == (1, 8)
    for receipt, place in ((fork["receipt"], None), (again["receipt"], None), (again["receipt"], 3)):
        if place is not None:
            receipt["outputs"][0]["token_ids"][place] += 1
        verdict = (await live.post("/verify", json={"receipt": receipt})).json()
        assert (verdict["valid"], verdict["first_mismatch"]) == (place is None, place), verdict


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"at": -1}, "parent.at"),
        ({"at": "4"}, "parent.at"),
        ({"seed": 4}, "seed"),
        ({"request": {}}, "is missing or unknown"),
        ({"unknown": 1}, "receipt.parent.unknown"),
        ({"adapter": "x"}, "adapter"),
        ({"parent": 5}, "receipt.parent must be"),
    ],
)
async def test_a_malformed_parent_is_refused(live, change, text):
    parent = await answered(live, "/generate", **PROMPT)
    receipt = (await answered(live, "/fork", seq_id=parent["seq_id"], at=4, seed=3, receipt=True))["receipt"]
    with pytest.raises(InvalidRequestError, match=text):
        Receipt.read(receipt | {"parent": receipt["parent"] | change})
    deep = receipt["parent"]
    for _ in range(100):
        deep = receipt["parent"] | {"parent": deep}
    with pytest.raises(InvalidRequestError, match="more than 100 parents"):
        Receipt.read(receipt | {"parent": deep})


async def test_another_keys_answer_is_unknown_at_every_door():
    settings = Settings(
        model="demo", dtype="float32", device="cpu", num_kv_blocks=64, max_model_len=256, api_key=("ann", "ben")
    )
    app = build_app(settings)
    async with ready_client(app) as client:
        client.headers["Authorization"] = "Bearer ann"
        parent = await answered(client, "/generate", **PROMPT)
        fork = await answered(client, "/fork", seq_id=parent["seq_id"], at=4)
        assert fork["token_ids"] == parent["token_ids"]
        of_fork = (await client.get(f"/result/{fork['seq_id']}/tokens")).json()
        client.headers["Authorization"] = "Bearer ben"
        for seq_id in (parent["seq_id"], fork["seq_id"], f"resp_{parent['seq_id']}"):
            for response in (
                await client.post("/fork", json={"seq_id": seq_id, "at": 4}),
                await client.get(f"/result/{seq_id}/tokens"),
                await client.get(f"/result/{seq_id}"),
            ):
                assert response.status_code == 404
                assert response.json()["error"]["code"] == "result_not_found"
        own = await answered(client, "/generate", **PROMPT)
        both = await asyncio.gather(*(answered(client, "/fork", seq_id=own["seq_id"], at=at) for at in (2, 9)))
        assert [fork["token_ids"] for fork in both] == [parent["token_ids"]] * 2
        assert (await client.get(f"/result/{both[0]['seq_id']}/tokens")).json()["tokens"] == of_fork["tokens"]


async def test_forks_beside_swaps_are_equal():
    small = {"num_kv_blocks": 9, "max_model_len": 128, "max_num_seqs": 4}
    settings = Settings(model="demo", dtype="float32", device="cpu", swap_space=0.01, preemption_mode="swap", **small)
    app = build_app(settings)
    async with ready_client(app) as client:
        parent = await answered(client, "/generate", **PROMPT | {"max_tokens": 60})
        forks = await asyncio.gather(
            *(answered(client, "/fork", seq_id=parent["seq_id"], at=at) for at in range(0, 60, 6)),
        )
        assert [fork["token_ids"] for fork in forks] == [parent["token_ids"]] * 10
        assert (await client.get("/stats")).json()["num_preemptions"] > 0


async def test_only_the_owner_and_only_a_kept_answer(live):
    for path in ("/result/none/tokens", "/fork"):
        response = await (live.get(path) if path != "/fork" else live.post(path, json={"seq_id": "none"}))
        assert response.status_code == 404
    running = (await live.post("/generate", json={"prompt": "x", "max_tokens": 400, "ignore_eos": True})).json()
    response = await live.post("/fork", json={"seq_id": running["seq_id"]})
    assert response.status_code == 400
    assert "has not ended" in response.json()["error"]["message"]
    await live.delete(running["result_url"])


async def test_tokens_have_ranks_and_alternatives(live):
    body = {**PROMPT, "n": 2, "logprobs": 3}
    parent = await answered(live, "/generate", **body)
    for output in parent["outputs"]:
        path, index = f"/result/{parent['seq_id']}/tokens", output["index"]
        whole = (await live.get(path, params={"output": index, "top": 5})).json()
        assert [token["token_id"] for token in whole["tokens"]] == output["token_ids"]
        assert whole["num_tokens"] == len(output["token_ids"])
        for token, sampled in zip(whole["tokens"], output["logprobs"], strict=True):
            assert token["logprob"] == pytest.approx(sampled["logprob"], abs=1e-4)
            assert [top["token_id"] for top in token["top"][:3]] == [top["token_id"] for top in sampled["top"]]
            assert [top["rank"] for top in token["top"]] == [1, 2, 3, 4, 5]
            better = sum(math.exp(top["logprob"]) for top in token["top"])
            assert 0 < better <= 1.0001
            if token["rank"] <= 5:
                assert token["top"][token["rank"] - 1]["token_id"] == token["token_id"]
        part = (await live.get(path, params={"output": index, "top": 5, "from": 3, "to": 6})).json()
        assert part["tokens"] == whole["tokens"][3:6]


async def test_a_fork_of_a_stored_chat_or_response_is_one(live):
    body = {"messages": [{"role": "user", "content": "One day"}], "max_tokens": 12, "seed": 7, "store": True}
    chat = await live.post("/v1/chat/completions", json={**body, "stream": True, "logprobs": True, "top_logprobs": 2})
    parent = chat.headers["X-Seq-Id"]
    whole = (await live.get(f"/v1/chat/completions/{parent}")).json()
    fork = await answered(live, "/fork", seq_id=parent, at=4)
    again = (await live.get(f"/v1/chat/completions/{fork['seq_id']}")).json()
    assert again["id"] == f"chatcmpl-{fork['seq_id']}"
    assert again["choices"][0]["message"] == whole["choices"][0]["message"]
    assert again["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    events = await live.get(f"/v1/chat/completions/{fork['seq_id']}?stream=true")
    assert events.text.endswith("data: [DONE]\n\n")
    response = (await live.post("/v1/responses", json={"input": "One day", "max_output_tokens": 12})).json()
    fork = await answered(live, "/fork", seq_id=response["id"], at=3)
    again = (await live.get(f"/v1/responses/{fork['seq_id']}")).json()
    assert again["output"][0]["content"] == response["output"][0]["content"]
