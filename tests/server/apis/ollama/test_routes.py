"""/api/chat, /api/generate and what tells of the model, whole and in lines, with scripted answers."""

import asyncio
import json
from datetime import datetime

import pytest
from fake_engine import answer_text
from tables import table

from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.language.chat.template import ChatTemplate
from splitfuse.server.api import streaming
from splitfuse.server.settings import Settings

MODEL = "splitfuse-demo-5m"
MESSAGES = [{"role": "user", "content": "Weather?"}]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("weather", "now")
]
DETAILS = {"parent_model": "", "format": "safetensors", "family": "llama", "families": ["llama"]}
DETAILS |= {"parameter_size": "5.4M", "quantization_level": "bfloat16"}
TEMPLATE = """{% for t in tools or [] %}{{ t | tojson }}<tool_call> {% endfor %}{% for m in messages %}
<{{ m.role }}>{{ m.reasoning_content or '' }}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}
{% endfor %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}{{ '<think>' if enable_thinking }}"""
TWO_CALLS = [
    *("Let me ", "look.\n", "<tool", '_call>{"name": "weather", ', '"arguments": {"town"', ': "Rome"}', "}</tool"),
    *('_call><tool_call>{"name": "now", "arguments": {}}', "</tool_call>", ""),
]


@pytest.fixture
def settings():
    return Settings(tool_call_parser="hermes")  # the template prints no whole call


@pytest.fixture
def templated(served):
    served.engine.tokenizer.chat_template = ChatTemplate(TEMPLATE, special_tokens={})
    return served


async def lines_of(served, path="chat", **fields):
    response = await served.client.post(f"/api/{path}", json=fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


async def whole(served, path="chat", **fields):
    response = await served.client.post(f"/api/{path}", json={**fields, "stream": False})
    assert response.status_code == 200, response.text
    return response.json()


def joined(lines):
    """Return the answer that a client makes of the lines."""
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    message = {"role": "assistant", "content": ""}
    for line in lines:
        for name in ("content", "thinking"):
            if name in line["message"]:
                message[name] = message.get(name, "") + line["message"][name]
        if "tool_calls" in line["message"]:
            message.setdefault("tool_calls", []).extend(line["message"]["tool_calls"])
    return {**lines[-1], "message": message}


async def both(served, **fields):
    """Return the answer, which is the same whole and in lines."""
    one, other = await whole(served, **fields), joined(await lines_of(served, **fields))
    for name in ("message", "done", "done_reason", "model", "prompt_eval_count", "eval_count"):
        assert one[name] == other[name]
    return one


async def asked(served, path="chat", **fields):
    """Send a request and return the handle that the engine got."""
    served.engine.hold()
    task = asyncio.create_task(whole(served, path, **fields))
    await served.engine.submitted.wait()
    (handle,) = served.engine.handles.values()
    await served.engine.allow()
    await task
    return handle


async def test_a_chat(served):
    answer = await both(served, model=MODEL, messages=MESSAGES, options={"num_predict": 5})
    prompt = "<user>Weather?\n<assistant>"
    assert answer["message"] == {"role": "assistant", "content": answer_text(prompt, num_tokens=5)}
    assert (answer["model"], answer["done"], answer["done_reason"]) == (MODEL, True, "length")
    assert (answer["prompt_eval_count"], answer["eval_count"]) == (len(prompt), 5)
    assert answer["total_duration"] >= answer["eval_duration"] >= 0
    assert answer["prompt_eval_duration"] >= 0
    assert answer["load_duration"] == 0
    assert datetime.fromisoformat(answer["created_at"]).tzinfo is not None


async def test_lines_come_as_tokens_do(served):
    served.engine.hold()
    async with served.client.stream("POST", "/api/chat", json={"messages": MESSAGES}) as response:
        await served.engine.allow(1)
        first = json.loads(await anext(response.aiter_lines()))
        assert not first["done"]
        assert len(first["message"]["content"]) == 1
    await asyncio.wait_for(served.engine.abort_seen.wait(), 60)


async def test_silence_is_broken_by_spaces_that_lines_may_begin_with(served, monkeypatch):
    monkeypatch.setattr(streaming, "PING_S", 0.01)
    served.engine.hold()
    async with served.client.stream("POST", "/api/chat", json={"messages": MESSAGES}) as response:
        parts = response.aiter_text()
        assert await anext(parts) == " "
        await served.engine.allow()
        lines = "".join([part async for part in parts]).splitlines()
    assert [json.loads(line)["done"] for line in lines][-1]


async def test_calls_come_whole(templated):
    templated.engine.script = TWO_CALLS
    answer = await both(templated, messages=MESSAGES, tools=TOOLS)
    assert answer["message"] == {
        "role": "assistant",
        "content": "Let me look.",
        "tool_calls": [
            {"function": {"name": "weather", "arguments": {"town": "Rome"}}},
            {"function": {"name": "now", "arguments": {}}},
        ],
    }
    assert answer["done_reason"] == "stop"


async def test_calls_and_results_stand_in_the_prompt(templated):
    call = {"function": {"name": "weather", "arguments": {"town": "Rome"}}}
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [call], "images": None},
        {"role": "tool", "content": "wet", "tool_name": "weather"},
    ]
    handle = await asked(templated, messages=turns, tools=TOOLS, options={"num_predict": 1})
    assert '<assistant>Hm.{"name": "weather", "arguments": {"town": "Rome"}}\n<tool>wet<assistant>' in handle.prompt


async def test_thinking(templated):
    templated.engine.script = ["A to", "wn.</thi", "nk>\n\nRome", "."]
    answer = await both(templated, messages=MESSAGES, think=True)
    assert answer["message"] == {"role": "assistant", "content": "Rome.", "thinking": "A town."}
    assert (await whole(templated, messages=MESSAGES, think="high"))["message"]["thinking"] == "A town."
    quiet = await whole(templated, messages=MESSAGES, think=False)
    assert quiet["prompt_eval_count"] == answer["prompt_eval_count"] - len("<think>")
    generated = await whole(templated, "generate", prompt="Weather?", think=True)
    assert (generated["response"], generated["thinking"]) == ("Rome.", "A town.")


async def test_generate(served):
    in_template, raw = "<system>Be kind.\n<user>Weather?\n<assistant>", "Weather?"
    asked = {"prompt": "Weather?", "system": "Be kind.", "options": {"num_predict": 4}}
    for more, prompt in (({}, in_template), ({"raw": True}, raw)):
        text = answer_text(prompt, num_tokens=4)
        answer = await whole(served, "generate", **asked, **more)
        assert (answer["response"], answer["done_reason"], answer["prompt_eval_count"]) == (text, "length", len(prompt))
        lines = await lines_of(served, "generate", **asked, **more)
        assert "".join(line["response"] for line in lines) == text
    served.engine.tokenizer.has_chat_template = False
    assert (await whole(served, "generate", **asked))["prompt_eval_count"] == len(raw)


async def test_a_request_for_nothing_loads(served):
    assert (await whole(served, "generate"))["done_reason"] == "load"
    loaded = await whole(served, messages=[])
    assert (loaded["message"]["content"], loaded["done"], loaded["done_reason"]) == ("", True, "load")
    assert served.engine.num_submitted == 0


async def test_options(served):
    options = {
        "temperature": 0.5, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "repeat_penalty": 1.2, "presence_penalty": 0.3,
        "frequency_penalty": 0.4, "seed": 7, "stop": ["x"], "num_predict": 9, "priority": 2,
        "num_ctx": 4096, "mirostat": 0, "num_thread": 8, "repeat_last_n": 64,
    }  # fmt: skip
    params = (await asked(served, messages=MESSAGES, options=options, keep_alive="5m")).params
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.5, 5, 0.9, 0.1)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.2, 0.3, 0.4)
    assert (params.seed, params.stop, params.priority) == (7, ("x",), 2)
    assert (params.max_tokens, params.default_max_tokens) == (None, 9)


async def test_without_a_limit_all_that_fits(served):
    for num_predict in (-1, -2, 0, None, 10**6):
        answer = await whole(served, messages=MESSAGES, options={"num_predict": num_predict})
        assert (answer["eval_count"], answer["done_reason"]) == (512 - 26, "length"), num_predict


async def test_formats(served):
    for form, expected in (("json", (None, True)), ({"type": "object"}, ('{"type":"object"}', None)), ("", None)):
        served.engine.submitted.clear()
        outputs = (await asked(served, messages=MESSAGES, format=form)).params.structured_outputs
        assert (outputs and (outputs.json, outputs.json_object)) == expected


async def test_what_tells_of_the_model(served):
    get = served.client.get
    (tag,) = (await get("/api/tags")).json()["models"]
    assert (tag["name"], tag["model"], tag["details"]["family"]) == (MODEL, MODEL, "llama")
    (process,) = (await get("/api/ps")).json()["models"]
    assert (process["name"], process["context_length"]) == (MODEL, 512)
    assert set((await get("/api/version")).json()) == {"version"}
    shown = (await served.client.post("/api/show", json={"model": f"{MODEL}:latest", "verbose": True})).json()
    num_parameters = {"general.parameter_count": 5_401_856}
    assert shown["model_info"] == {"general.architecture": "llama", "llama.context_length": 512} | num_parameters
    assert shown["details"] == tag["details"] == DETAILS
    assert tag["size"] == process["size"] == (DEMO_FOLDER / "model.safetensors").stat().st_size
    assert (await served.client.post("/api/pull", json={"model": MODEL})).json() == {"status": "success"}
    assert shown["template"] == served.engine.tokenizer.chat_template.source
    assert shown["capabilities"] == ["completion", "tools"]
    served.engine.tokenizer.chat_template = ChatTemplate(TEMPLATE, special_tokens={})
    served.engine.default_sampling_params = {"temperature": 0.2, "repetition_penalty": 1.1, "max_tokens": 99}
    shown = (await served.client.post("/api/show", json={"model": MODEL})).json()
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    parameters = [line.split() for line in shown["parameters"].splitlines()]
    assert parameters == [["temperature", "0.2"], ["repeat_penalty", "1.1"], ["num_predict", "99"]]


async def test_errors_are_one_sentence(served):
    long = ("generate", {"prompt": "x" * 600, "raw": True}, 400, "600 tokens are too many")
    for path, fields, status, said in [*table(__file__, "errors"), long]:
        response = await served.client.post(f"/api/{path}", json=fields)
        assert response.status_code == status, response.text
        assert set(response.json()) == {"error"}
        assert said in response.json()["error"]


async def test_a_failure_inside_the_stream_is_a_line(served):
    served.engine.fail_at = 2
    lines = await lines_of(served, messages=MESSAGES)
    assert "internal error" in lines[-1]["error"]
    response = await served.client.post("/api/chat", json={"messages": MESSAGES, "stream": False})
    assert (response.status_code, set(response.json())) == (500, {"error"})


@pytest.mark.parametrize("settings", [Settings(api_key=("secret",))])
async def test_the_key(served):
    refused = await served.client.get("/api/tags")
    assert (refused.status_code, set(refused.json())) == (401, {"error"})
    assert (await served.client.get("/api/tags", headers={"Authorization": "Bearer secret"})).status_code == 200


async def test_the_document_has_it(served):
    paths = (await served.client.get("/openapi.json")).json()["paths"]
    assert {path for path in paths if path.startswith("/api")} == {
        *("/api/chat", "/api/generate", "/api/tags", "/api/show", "/api/version", "/api/ps")
    }
    for path in ("/api/chat", "/api/generate"):
        assert set(paths[path]["post"]["responses"]["200"]["content"]) == {"application/x-ndjson", "application/json"}
    refused = await served.client.get("/api/chat")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("settings", [Settings(ollama_api=False)])
async def test_it_can_be_left_out(served):
    response = await served.client.get("/api/tags")
    assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found_error")
    assert "--no-ollama-api" in response.json()["error"]["message"]
