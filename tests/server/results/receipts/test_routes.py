"""Answers of every route carry receipts, and POST /verify checks them."""

import json
from pathlib import Path

import httpx
import pytest
from serving import parse_events

from splitfuse.server.cli import main

MESSAGES = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 60}
TOOLS = {
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "add",
                "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
            },
        }
    ],
    "tool_choice": "required",
}
BODIES = {
    "/generate": {"prompt": "Once upon", "max_tokens": 12, "n": 2},
    "/v1/completions": {"prompt": "Once upon", "max_tokens": 12, "seed": 3, "presence_penalty": 1.0},
    "/v1/chat/completions": MESSAGES | TOOLS,
    "/v1/messages": MESSAGES | {"max_tokens": 9},
    "/v1/responses": {"input": "hi", "max_output_tokens": 16},
}


async def post(live, path, **fields):
    response = await live.post(path, json=fields, headers={"Prefer": "wait=60"})
    assert response.status_code == 200, response.text
    return response


async def verified(live, receipt):
    return (await post(live, "/verify", receipt=receipt)).json()


@pytest.mark.parametrize("path", BODIES)
async def test_an_answer_carries_a_receipt_that_verifies(live, path):
    answer = (await post(live, path, **BODIES[path], receipt=True)).json()
    verdict = await verified(live, answer["receipt"])
    assert (verdict["valid"], verdict["first_mismatch"], verdict["reason"]) == (True, None, None)
    assert "receipt" not in (await post(live, path, **BODIES[path])).json()


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_ends_with_the_receipt(live, path):
    events = parse_events((await post(live, path, **BODIES[path], receipt=True, stream=True)).text)
    ends = [event["data"] for event in events if event["data"] != "[DONE]"]
    ends = [end.get("response", end) for end in ends]
    (receipt,) = [end["receipt"] for end in ends if "receipt" in end]
    assert (await verified(live, receipt))["valid"]


async def test_several_prompts_have_several_receipts(live):
    body = {"prompt": ["one", "two"], "max_tokens": 4, "n": 2}
    receipts = (await post(live, "/v1/completions", **body, receipt=True)).json()["receipt"]
    assert [(await verified(live, receipt))["valid"] for receipt in receipts] == [True, True]


async def test_a_changed_token_is_named(live):
    receipt = (await post(live, "/generate", prompt="Once", max_tokens=9, receipt=True)).json()["receipt"]
    receipt["outputs"][0]["token_ids"][4] ^= 1
    verdict = await verified(live, receipt)
    assert (verdict["valid"], verdict["first_mismatch"], verdict["output"]) == (False, 4, 0)
    assert verdict["drawn_token_id"] == verdict["token_id"] ^ 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "receipt"),
        ({"receipt": None}, "receipt"),
        ({"receipt": []}, "receipt"),
        ({"receipt": {}}, "receipt"),
        ({"receipt": {}, "more": 1}, "more"),
    ],
)
async def test_what_is_no_receipt_is_a_400(live, body, param):
    response = await live.post("/verify", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_a_receipt_of_other_weights_is_a_400_that_says_so(live):
    receipt = (await post(live, "/generate", prompt="Once", max_tokens=2, receipt=True)).json()["receipt"]
    response = await live.post("/verify", json={"receipt": receipt | {"weights": "sha256:0"}})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, "receipt.weights", "other_weights")


def test_the_command_verifies_at_a_server_and_alone(live_server, tmp_path: Path, capsys):
    body = {"prompt": "Once", "max_tokens": 5, "receipt": True}
    answer = httpx.post(f"{live_server.url}/generate", json=body, headers={"Prefer": "wait=60"}).json()
    path, right = tmp_path / "receipt.json", [str(tmp_path / "receipt.json"), "--url", live_server.url]
    path.write_text(json.dumps(answer))  # a whole answer will do
    assert main(["verify", *right]) == 0
    assert capsys.readouterr().out == "valid: all 5 tokens follow\n"
    answer["receipt"]["outputs"][0]["token_ids"][1] ^= 1
    path.write_text(json.dumps(answer["receipt"]))
    assert main(["verify", str(path), "--model", "demo", "--dtype", "float32", "--num-kv-blocks", "16"]) == 1
    out = capsys.readouterr().out
    assert "not valid: sha256 is not the hash of the receipt's content; output 0, token 1: " in out


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"receipt": {"version": 1}}'])
def test_the_command_refuses_what_is_no_receipt(tmp_path: Path, one_line_here, text):
    path = tmp_path / "receipt.json"
    if text is not None:
        path.write_text(text)
    one_line_here(["verify", str(path), "--model", "demo"], "receipt")
