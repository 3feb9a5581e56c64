"""Any answer, cut anywhere, is accepted as history, and shows no half of a call or of a tag.

`make histories` sends 2,000 answers to every API; the suite sends a share of them.
"""

import json
import os
import random

import fake_engine
import pytest
from published import published

from splitfuse.engine import ChatForm
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.language.chat.template import ChatTemplate

NUM_ANSWERS = int(os.environ.get("SPLITFUSE_HISTORIES", "20"))  # per API and template
# One template adds arguments to a text, the other lists them, like Qwen3-Coder's.
ADDED = """{{ '{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments + '}' }}"""
LISTED = """<function={{ c.function.name }}>
{% for k, v in c.function.arguments|items %}{{ '<parameter=' ~ k ~ '>\n' ~ v ~ '\n</parameter>\n' }}{% endfor %}
</function>"""
TEMPLATE = """{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ m.reasoning_content or '' }}}}{{{{ tools }}}}
{{{{ m.content if m.content is string }}}}{{% for c in m.tool_calls or [] %}}{{{{ '<tool_call>\n' }}}}{call}
</tool_call>{{% endfor %}}

{{% endfor %}}<think></think>"""
HERMES = ['{"name": "f", "arguments": {"a": "é", "b": [1, 2]}}', '{"name": "g", "arguments": [1]}']
XML = ["<function=f>\n<parameter=a>\nx\n</parameter>\n</function>", "<function=g>\n</function>"]
FUNCTIONS = [{"name": "f", "parameters": {"type": "object"}}, {"name": "g", "parameters": {"type": "object"}}]
NESTED = [{"type": "function", "function": function} for function in FUNCTIONS]
FLAT = [{"type": "function", **FUNCTIONS[0]}, {"type": "custom", "name": "g"}]
USER = {"role": "user", "content": "x"}
HALVES = ("<tool_c", "<tool_call>", "<function=", "</tool_ca", "<thin", "</thin")


def random_answer(rng: random.Random, calls: list[str]) -> list[str]:
    """Return an answer in tokens: perhaps thinking, then text, calls and pieces of both."""
    thinking = rng.choice(["", "<think>", "<think>I see. 😀</think>", "<think>\n\n</think>\n"])
    pieces = ["Hello. ", "😀 日本", " ", "\n\n", "a < b", "!"]
    pieces += [f"<tool_call>\n{call}\n</tool_call>" for call in calls for _ in range(2)]
    text = thinking + "".join(rng.choices(pieces, k=rng.randint(0, 4)))
    tokens = []
    while text:
        length = rng.randint(1, 8)
        tokens.append(text[:length])
        text = text[length:]
    return tokens or [""]


def chat(limit: int, later: list) -> dict:
    return {"messages": [USER, *later], "tools": NESTED, "max_tokens": limit}


def responses(limit: int, later: list) -> dict:
    return {"input": [USER, *later], "tools": FLAT, "max_output_tokens": limit}


def messages(limit: int, later: list) -> dict:
    tools = [{"name": f["name"], "input_schema": f["parameters"]} for f in FUNCTIONS]
    return {"messages": [USER, *later], "tools": tools, "max_tokens": limit, "thinking": {"type": "adaptive"}}


def ollama(limit: int, later: list) -> dict:
    return {"messages": [USER, *later], "tools": NESTED, "options": {"num_predict": limit}, "stream": False}


# Path, body with an earlier answer, the answer as history, the field with a choice of tools.
APIS = {
    "chat": ("/v1/chat/completions", chat, lambda answer: [answer["choices"][0]["message"]]),
    "responses": ("/v1/responses", responses, lambda answer: answer["output"]),
    "messages": ("/v1/messages", messages, lambda answer: [{"role": "assistant", "content": answer["content"]}]),
    "ollama": ("/api/chat", ollama, lambda answer: [answer["message"]]),
}


def shown_texts(history: object) -> list[str]:
    """Return the texts of an answer that users read."""
    if isinstance(history, list):
        return [text for item in history for text in shown_texts(item)]
    if not isinstance(history, dict):
        return []
    if history.get("type") == "reasoning":
        return []
    own = [history.get(name) for name in ("content", "text")]
    return [text for text in own if isinstance(text, str)] + shown_texts(history.get("content"))


@pytest.fixture(autouse=True)
def _long_prompts(monkeypatch):
    monkeypatch.setattr(fake_engine, "MAX_MODEL_LEN", 8192)


@pytest.mark.parametrize(("call", "calls"), [(ADDED, HERMES), (LISTED, XML)], ids=["hermes", "qwen3_coder"])
@pytest.mark.parametrize("api", APIS)
async def test_any_answer_is_accepted_as_history(served, api, call, calls):
    path, body, history = APIS[api]
    served.engine.tokenizer.chat_template = ChatTemplate(TEMPLATE.format(call=call), special_tokens={})
    rng = random.Random(1)
    for number in range(NUM_ANSWERS):
        served.engine.script = random_answer(rng, calls)
        choice = {"tool_choice": rng.choice(["auto", "auto", "required"])} if api in ("chat", "responses") else {}
        response = await served.client.post(path, json=body(rng.randint(1, 60), []) | choice)
        assert response.status_code == 200, response.text
        earlier = history(response.json())
        texts = shown_texts(earlier)
        assert [half for half in HALVES for text in texts if half in text] == [], (number, served.engine.script)
        again = await served.client.post(path, json=body(1, [*earlier, USER]))
        assert again.status_code == 200, (number, earlier, again.text)


# The result of the call, in the words of each API.
RESULTS = {
    "chat": lambda said: [{"role": "tool", "tool_call_id": said[0]["tool_calls"][0]["id"], "content": "r"}],
    "responses": lambda said: [{"type": "function_call_output", "call_id": said[-1]["call_id"], "output": "r"}],
    "messages": lambda said: [
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": said[0]["content"][-1]["id"]}]}
    ],
    "ollama": lambda said: [{"role": "tool", "tool_name": "f", "content": "r"}],
}
PUBLISHED = {path.stem: path.read_text() for path in sorted(published("conformance/templates").glob("*.jinja"))}


@pytest.mark.parametrize("name", PUBLISHED)
async def test_a_call_in_the_templates_own_words_comes_back_as_history(served, name):
    """Four APIs read the call, take their own answer back, and the next prompt shows the call."""
    try:
        form = ChatForm.derive(PUBLISHED[name])
    except ConfigError:
        return
    tokens = {"bos_token": "", "eos_token": ""}
    served.engine.tokenizer.chat_template = ChatTemplate(PUBLISHED[name], special_tokens=tokens)
    text = '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>'
    if form.has_calls:
        text = form.render_calls([("f", {"a": "</tool_call>"})])
    for api, (path, body, history) in APIS.items():
        served.engine.script = [text[n : n + 3] for n in range(0, len(text), 3)]
        response = await served.client.post(path, json=body(len(text), []))
        assert response.status_code == 200, response.text
        earlier = history(response.json())
        assert {"name": '"f"' in json.dumps(earlier), "tag": "</tool_call>" in json.dumps(earlier)} == {
            "name": True,
            "tag": True,
        }, (path, earlier)
        assert not any(text.strip() for text in shown_texts(earlier)), (path, earlier)
        again = await served.client.post(path, json=body(1, [*earlier, *RESULTS[api](earlier)]))
        assert again.status_code == 200, (path, earlier, again.text)
