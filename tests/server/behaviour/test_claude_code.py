"""Requests of the form and size that Claude Code 2.1 sends: the same fields, betas, blocks and number of tools.

Recorded with `claude -p` against this server; the texts are ours.
"""

import json

import fake_engine
import pytest
from serving import parse_events

from splitfuse.engine.language.chat.template import ChatTemplate
from splitfuse.server.settings import Settings

TEMPLATE = """{% for t in tools or [] %}{{ t | tojson }}<tool_call> {% endfor %}{% for m in messages %}
<{{ m.role }}>{{ m.reasoning_content or '' }}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}
{% endfor %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}{{ '<think>' if enable_thinking }}"""
CACHED = {"cache_control": {"type": "ephemeral"}}
TOOL_NAMES = ["Bash", "Read", "Edit", "Write", *(f"Tool{number}" for number in range(20))]
PATH = "/v1/messages?beta=true"
HEADERS = {
    "x-api-key": "sk-local",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,mid-conversation-system-2026-04-07",
    "anthropic-dangerous-direct-browser-access": "true",
    "x-app": "cli",
}


def text(value, **more):
    return {"type": "text", "text": value, **more}


def tool(name):
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"command": {"type": "string", "description": "what to do"}},
        "required": ["command"],
        "additionalProperties": False,
    }
    return {"name": name, "description": f"{name} does things. " * 100, "input_schema": schema}


def asked(*later, cch):
    """Return a request of a session: the first turn and those that came later."""
    first = [text("<system-reminder>\nThe date.\n</system-reminder>"), text("Run echo.", **CACHED)]
    return {
        "model": "claude-opus-4-8",
        "max_tokens": 64000,
        "stream": True,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": '{"device_id":"f6","account_uuid":"","session_id":"a7"}'},
        "system": [
            text(f"x-anthropic-billing-header: cc_version=2.1.197.{cch}; cc_entrypoint=sdk-cli;"),
            text("You are an agent.", **CACHED),
            text("\nYou help with software. " * 250, **CACHED),
        ],
        "tools": [tool(name) for name in TOOL_NAMES],
        "messages": [{"role": "user", "content": first}, {"role": "system", "content": "Agent types."}, *later],
    }


@pytest.fixture
def settings():
    return Settings(served_model_name="mine,claude-*", tool_call_parser="hermes")


async def test_two_turns_with_a_call(served, monkeypatch):
    monkeypatch.setattr(fake_engine, "MAX_MODEL_LEN", 200_000)
    prompts = []
    submit = served.engine.submit

    async def noted(prompt, *args, **options):
        prompts.append(prompt["prompt"])
        return await submit(prompt, *args, **options)

    monkeypatch.setattr(served.engine, "submit", noted)
    served.engine.tokenizer.chat_template = ChatTemplate(TEMPLATE, special_tokens={})

    async def ask(*later, cch, script):
        served.engine.script = script
        response = await served.client.post(PATH, json=asked(*later, cch=cch), headers=HEADERS)
        assert response.status_code == 200, response.text
        return [event["data"] for event in parse_events(response.text)]

    call = ["I look.</think>\n", "Let me.", '<tool_call>{"name": "Bash", "arguments": ', '{"command": "echo"}}', ""]
    events = await ask(cch="1c0", script=call)
    begun = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [block["type"] for block in begun] == ["thinking", "text", "tool_use"]
    arguments = "".join(event["delta"].get("partial_json", "") for event in events if "delta" in event)
    assert json.loads(arguments) == {"command": "echo"}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"

    said = [
        {"type": "thinking", "thinking": "I look.", "signature": ""},
        text("Let me."),
        {**begun[2], "input": json.loads(arguments)},
    ]
    result = {"tool_use_id": begun[2]["id"], "type": "tool_result", "content": "42", "is_error": False, **CACHED}
    later = [{"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
    events = await ask(*later, cch="b97", script=["Hm.</think>", "It said 42.", ""])
    assert events[-2]["delta"]["stop_reason"] == "end_turn"

    first, second = (prompt.removesuffix("<assistant><think>") for prompt in prompts)
    assert second.startswith(first), "the second turn finds the first in the cache of prefixes"
    assert second.endswith('<assistant>I look.Let me.{"name": "Bash", "arguments": {"command": "echo"}}\n<tool>42')
    assert len(first) > 60_000
    assert "Run echo.\n\nAgent types." in first
