"""Reasoning with an end, at every door: a budget under each API's name, a level, the end of a running answer."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import ServerProcess

from splitfuse.client import Client, NotFoundError
from splitfuse.engine.config import DEMO_FOLDER

TEMPLATE = """{% for m in messages %}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}
{{ m.content }}{% endfor %}{% if add_generation_prompt %}
<think>{% endif %}"""
ASKED = "Once upon a time"
TURNS = [{"role": "user", "content": ASKED}]
PROMPT = f"{ASKED}<think>"
GREEDY = {"temperature": 0, "seed": 1}
LENGTH = {"max_tokens": 40, **GREEDY}
SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
# Route, fields that ask for three tokens of reasoning, and the place of the reasoning and the text in the answer.
CHAT, RAW = ("/v1/chat/completions", {"messages": TURNS, **LENGTH}), ("/v1/completions", {"prompt": PROMPT, **LENGTH})
RESPONSES = ("/v1/responses", {"input": ASKED, "max_output_tokens": 40, "temperature": 0})
MESSAGES = ("/v1/messages", {"messages": TURNS, **LENGTH})
OPTIONS = {"num_predict": 40, **GREEDY}
OLLAMA_CHAT = ("/api/chat", {"messages": TURNS, "stream": False})
OLLAMA = ("/api/generate", {"prompt": ASKED, "stream": False})
LLAMA = ("/completion", {"prompt": PROMPT, "n_predict": 40, **GREEDY})
DOORS: list[tuple[tuple[str, dict[str, Any]], dict[str, Any]]] = [
    (CHAT, {"thinking_budget": 3}), (CHAT, {"thinking_token_budget": 3}), (CHAT, {"reasoning_budget": 3}),
    (CHAT, {"reasoning": {"max_tokens": 3}}), (CHAT, {"thinking_budget": 3, "reasoning_effort": "high"}),
    (RAW, {"thinking_budget": 3}), (RESPONSES, {"thinking_budget": 3}), (RESPONSES, {"reasoning": {"max_tokens": 3}}),
    (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 3}}), (MESSAGES, {"thinking_budget": 3}),
    (OLLAMA_CHAT, {"thinking_budget": 3, "options": OPTIONS}),
    (OLLAMA_CHAT, {"options": {**OPTIONS, "thinking_budget": 3}}), (OLLAMA, {"thinking_budget": 3, "options": OPTIONS}),
    (LLAMA, {"thinking_budget_tokens": 3}),
]  # fmt: skip
NO_THOUGHTS = [
    (CHAT, {"thinking_budget": 0}),
    (CHAT, {"reasoning_effort": "none"}),
    (RESPONSES, {"reasoning": {"effort": "none"}}),
    (MESSAGES, {"thinking": {"type": "disabled"}}),
    (OLLAMA_CHAT, {"think": False, "options": OPTIONS}),
    (RAW, {"thinking_budget": 0}),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("thinking")
    (folder / "template.jinja").write_text(TEMPLATE)
    with ServerProcess(str(DEMO_FOLDER), "--dtype", "float32", *_flags(folder)) as process:
        yield process


def _flags(folder: Path) -> list[str]:
    return ["--chat-template", str(folder / "template.jinja"), "--results", str(folder / "results.db")]


def parts(answer: dict[str, Any]) -> tuple[str, str]:
    """Return the reasoning and the text of an answer, in the form of any API."""
    if "output" in answer:
        found = {item["type"]: item["content"][0]["text"] for item in answer["output"]}
        return found.get("reasoning", ""), found["message"]
    if isinstance(answer.get("content"), list):
        texts = {block["type"]: block.get("thinking") or block.get("text") or "" for block in answer["content"]}
        return texts.get("thinking", ""), texts["text"]
    if "message" in answer:
        return answer["message"].get("thinking", ""), answer["message"]["content"]
    if "response" in answer:
        return answer.get("thinking", ""), answer["response"]
    message = answer.get("choices", [answer])[0].get("message")
    if message is not None:
        return message.get("reasoning_content") or "", message["content"]
    text = answer.get("choices", [answer])[0].get("text") or answer["content"]
    thoughts, _, content = text.partition("</think>")
    return thoughts.strip(), content.strip()


def ask(server: ServerProcess, door: tuple[str, dict[str, Any]], **fields: Any) -> dict[str, Any]:
    answer = httpx.post(server.url + door[0], json={**door[1], **fields}, timeout=60)
    assert answer.status_code == 200, answer.text
    assert "budget" not in answer.headers.get("x-ignored-fields", "")
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture(scope="module")
def expected(server: ServerProcess) -> tuple[str, str]:
    """Reasoning and text of the answer with a budget of three tokens, as /generate has them."""
    with Client(server.url) as client:
        result = client.generate(PROMPT, thinking_budget=3, **LENGTH)
    thoughts, _, content = result.text.partition("</think>")
    assert _num_tokens(server, thoughts) == 3
    return thoughts.strip(), content.strip()


def _num_tokens(server: ServerProcess, text: str) -> int:
    count: int = httpx.post(server.url + "/tokenize", json={"prompt": text, "add_special_tokens": False}).json()[
        "count"
    ]
    return count


@pytest.mark.parametrize("door", DOORS, ids=lambda door: f"{door[0][0]} {json.dumps(door[1])}")
def test_a_budget_counts_at_every_door(
    server: ServerProcess, expected: tuple[str, str], door: tuple[tuple[str, dict[str, Any]], dict[str, Any]]
) -> None:
    thoughts, content = parts(ask(server, door[0], **door[1]))
    assert (thoughts, content.strip()) == expected


@pytest.mark.parametrize("door", NO_THOUGHTS, ids=lambda door: f"{door[0][0]} {json.dumps(door[1])}")
def test_no_token_of_thought_before_the_closing(
    server: ServerProcess, door: tuple[tuple[str, dict[str, Any]], dict[str, Any]]
) -> None:
    thoughts, content = parts(ask(server, door[0], **door[1]))
    assert thoughts == ""
    assert len(content) > 10


def test_streamed_equals_whole_and_usage_counts_the_closing(server: ServerProcess, expected: tuple[str, str]) -> None:
    answer = ask(server, CHAT, thinking_budget=3)
    assert answer["usage"]["completion_tokens"] == 40
    fields = {**CHAT[1], "thinking_budget": 3, "stream": True}
    lines = httpx.post(server.url + CHAT[0], json=fields, timeout=60).text.split("\n\n")
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines if line.startswith("data: {")]
    text = {name: "".join(delta.get(name) or "" for delta in deltas) for name in ("reasoning_content", "content")}
    assert (text["reasoning_content"], text["content"].strip()) == expected


def test_a_schema_holds_behind_the_closing(server: ServerProcess, expected: tuple[str, str]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    thoughts, content = parts(ask(server, CHAT, thinking_budget=3, response_format=form))
    assert thoughts == expected[0]
    assert json.loads(content)["n"] in (1, 2)


def test_a_call_comes_behind_the_closing_of_each_output(server: ServerProcess) -> None:
    tool = {"type": "function", "function": {"name": "count", "parameters": SCHEMA}}
    asked = {"tools": [tool], "tool_choice": "required", "n": 2, "max_tokens": 80}
    for choice in ask(server, CHAT, thinking_budget=3, **asked)["choices"]:
        assert _num_tokens(server, choice["message"]["reasoning_content"]) == 3
        assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["n"] in (1, 2)


TWO_BUDGETS = [
    (CHAT, {"thinking_budget": 1, "reasoning_budget": 2}),
    (CHAT, {"thinking_budget": 1, "reasoning": {"max_tokens": 2}}),
    (RESPONSES, {"thinking_budget": 1, "reasoning": {"max_tokens": 2}}),
    (MESSAGES, {"thinking_budget": 1, "thinking": {"type": "enabled", "budget_tokens": 2}}),
    (OLLAMA_CHAT, {"thinking_budget": 1, "options": {**OPTIONS, "thinking_budget": 2}}),
    (LLAMA, {"thinking_budget": 1, "thinking_budget_tokens": 2}),
]


@pytest.mark.parametrize(("door", "fields"), [(CHAT, {"thinking_budget": -2}), *TWO_BUDGETS], ids=str)
def test_a_wrong_budget_and_two_that_differ_are_named(
    server: ServerProcess, door: tuple[str, dict[str, Any]], fields: dict[str, Any]
) -> None:
    answer = httpx.post(server.url + door[0], json={**door[1], **fields})
    assert answer.status_code == 400
    message = json.dumps(answer.json())
    assert "thinking_budget" in message
    assert ("send one" in message) == (fields["thinking_budget"] == 1)
    same = json.loads(json.dumps(fields).replace(": 2", ": 1"))
    if fields["thinking_budget"] == 1:
        assert httpx.post(server.url + door[0], json={**door[1], **same}, timeout=60).status_code == 200


def test_a_key_stops_no_thoughts_of_another(tmp_path: Path) -> None:
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    keys = ("--api-key", "alice", "--api-key", "bob")
    with ServerProcess(str(DEMO_FOLDER), "--dtype", "float32", *_flags(tmp_path), *keys) as process:
        asked = {"prompt": PROMPT, "max_tokens": 800, "ignore_eos": True, "temperature": 0.7, "seed": 4}
        with Client(process.url, api_key="alice") as alice, Client(process.url, api_key="bob") as bob:
            job = alice.submit(**asked)
            with pytest.raises(NotFoundError):
                bob.stop_thinking(job.seq_id)
            budget, result = alice.stop_thinking(job.seq_id), job.result()
            assert "</think>" in result.text
            assert bob.generate(**asked, thinking_budget=budget).token_ids == result.token_ids


def test_a_receipt_states_the_budget(server: ServerProcess) -> None:
    receipt = ask(server, CHAT, thinking_budget=3, receipt=True)["receipt"]
    assert receipt["request"]["thinking"]["budget"] == 3
    verdict = httpx.post(server.url + "/verify", json={"receipt": receipt}, timeout=60).json()
    assert verdict["valid"], verdict


@pytest.mark.thorough
def test_stopped_thinking_survives_kill_9_and_equals_its_budget(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    fields: dict[str, Any] = {"max_tokens": 1500, "ignore_eos": True, "temperature": 0.7, "seed": 4}
    flags = ["--dtype", "float32", *_flags(tmp_path)]
    with ServerProcess(str(DEMO_FOLDER), *flags) as process:
        seq_id = httpx.post(process.url + "/generate", json={"prompt": PROMPT, **fields}).json()["seq_id"]
        _until(lambda: _text(process, seq_id))
        with Client(process.url) as client:
            budget = client.stop_thinking(seq_id)
        assert budget > 0
        unknown = httpx.post(f"{process.url}/result/{'x' * 32}/stop_thinking")
        assert unknown.status_code == 404
        process.process.kill()
        process.process.wait()
    with ServerProcess(str(DEMO_FOLDER), *flags) as process:
        resumed = httpx.get(f"{process.url}/result/{seq_id}?wait=60", timeout=90).json()
    with Client(server.url) as client:
        plain = client.generate(PROMPT, thinking_budget=budget, **fields)
    assert resumed["status"] == "completed"
    assert resumed["outputs"][0]["token_ids"] == plain.token_ids


@pytest.mark.parametrize(("prompt", "fields"), [(ASKED, {}), (PROMPT, {"thinking_budget": 0})], ids=["none", "over"])
def test_an_answer_without_thoughts_cannot_stop_them(
    server: ServerProcess, prompt: str, fields: dict[str, int]
) -> None:
    asked = {"prompt": prompt, "max_tokens": 1000, "ignore_eos": True, **fields}
    seq_id = httpx.post(f"{server.url}/generate", json=asked).json()["seq_id"]
    _until(lambda: _text(server, seq_id))
    answer = httpx.post(f"{server.url}/result/{seq_id}/stop_thinking")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_thinking")


def test_a_batch_has_the_budget(server: ServerProcess, expected: tuple[str, str]) -> None:
    line = {"custom_id": "1", "method": "POST", "url": CHAT[0], "body": {**CHAT[1], "thinking_budget": 3}}
    sent = {"file": ("batch.jsonl", json.dumps(line))}
    uploaded = httpx.post(f"{server.url}/v1/files", files=sent, data={"purpose": "batch"}).json()
    asked = {"input_file_id": uploaded["id"], "endpoint": CHAT[0], "completion_window": "24h"}
    batch_id = httpx.post(f"{server.url}/v1/batches", json=asked).json()["id"]
    batch: dict[str, Any] = {}
    _until(lambda: batch.update(httpx.get(f"{server.url}/v1/batches/{batch_id}").json()) or batch["output_file_id"])
    lines = httpx.get(f"{server.url}/v1/files/{batch['output_file_id']}/content").text
    thoughts, content = parts(json.loads(lines)["response"]["body"])
    assert (thoughts, content.strip()) == expected


def _text(process: ServerProcess, seq_id: str) -> str:
    text: str = httpx.get(f"{process.url}/result/{seq_id}").json()["outputs"][0]["text"]
    return text


def _until(condition: Any) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
