"""Any answer, sent back, renders: by the shapes that 37 published templates and small ones of their kinds take."""

import json
import re
from typing import Any

import pytest
from published import published

from splitfuse.engine.errors import InvalidRequestError
from splitfuse.engine.language.chat.messages import read_items, read_messages
from splitfuse.engine.language.chat.shapes import Shapes
from splitfuse.engine.language.chat.template import ChatTemplate
from splitfuse.engine.language.chat.tools import read_tools

PUBLISHED = sorted(published("conformance/templates").glob("*.jinja"))
# Templates that need variables of their own: no server that knows only messages and tools can render them.
WANT_MORE = {"fireworks-ai-llama-3-firefunction-v2"}

TEXT, NAME = "{{ m.content or '' }}", "{{ c.function | tojson }}"
# Pieces of a template: tools, a message, a call, then the repair that it needs.
SMALL: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "as it is": ("", TEXT, NAME, {}),
    "looks into the content": ("", "{{ m.content.strip() }}", NAME, {"content": "empty"}),
    "parts": ("", "{% for p in m.content %}{{ p.text }}{% endfor %}", NAME, {"has_parts": True}),
    "named results": ("", "§ m.role == 'tool' and not m.name §" + TEXT, NAME, {"has_named_results": True}),
    "one call": ("", "§ m.tool_calls | default([]) | length > 1 §" + TEXT, NAME, {"has_one_call": True}),
    "first system": ("", "§ m.role == 'system' and not loop.first §" + TEXT, NAME, {"has_first_system": True}),
    "no system": ("", "§ m.role == 'system' §" + TEXT, NAME, {"has_no_system": True}),
    "whole tools": ("§ not tool.function.parameters §", TEXT, NAME, {"has_whole_tools": True}),
    "short ids": ("", "§ m.role == 'tool' and m.tool_call_id | length != 9 §" + TEXT, "§ c.id | length != 9 §" + NAME,
                  {"has_short_ids": True}),
    "text or calls": ("", "§ m.content and m.tool_calls §" + TEXT, NAME, {"has_text_or_calls": True}),
    "no calls": ("", TEXT, "", {"shows_calls": False}),
    "no tools": ("{% break %}", TEXT, NAME, {"shows_tools": False}),
}  # fmt: skip


def small(tool: str, message: str, call: str) -> str:
    source = f"""{{% for tool in tools or [] %}}{tool}{{{{ tool | tojson }}}}{{% endfor %}}
{{% for m in messages %}}[{{{{ m.role }}}}]{message}
{{% for c in m.tool_calls or [] %}}<tool_call>{call}{{% endfor %}}{{% endfor %}}[assistant]"""
    return re.sub("§ (.*?) §", r"{% if \1 %}{{ raise_exception('no') }}{% endif %}", source)


TEMPLATES = {name: small(*parts) for name, (*parts, _) in SMALL.items()}
TEMPLATES |= {path.stem: path.read_text() for path in PUBLISHED if path.stem not in WANT_MORE}


def template_of(source: str) -> ChatTemplate:
    return ChatTemplate(source, special_tokens={"bos_token": "<s>", "eos_token": "</s>"})


def call(number: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{number:024}", "type": "function", "function": function}


def result(number: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number:024}", "content": text}


USER = {"role": "user", "content": "quest1"}
TOOLS = read_tools(
    [
        {"type": "function", "function": {"name": "lookup"}},
        {"type": "function", "function": {"name": "seek", "description": "Seeks.", "parameters": {"type": "object"}}},
    ]
)
TWO = [call(1, "lookup", {"key": "val1"}), call(2, "seek", {"key": "val2"})]
HISTORIES: dict[str, list[dict[str, Any]]] = {
    "null": [USER, {"role": "assistant", "content": None, "tool_calls": TWO[:1]}, result(1, "res1")],
    "absent": [USER, {"role": "assistant", "tool_calls": TWO[:1]}, result(1, "res1")],
    "empty": [USER, {"role": "assistant", "content": "", "tool_calls": TWO[:1]}, result(1, "res1")],
    "text and call": [USER, {"role": "assistant", "content": "text1", "tool_calls": TWO[:1]}, result(1, "res1")],
    "two calls": [USER, {"role": "assistant", "tool_calls": TWO}, result(2, "res2"), result(1, "res1")],
    "late system": [{"role": "system", "content": "sys1"}, USER, {"role": "assistant", "content": "text1"},
                    {"role": "system", "content": "sys2"}, {"role": "user", "content": "quest2"}],
}  # fmt: skip
MARKS = {"lookup", "quest1", "quest2", "val1", "val2", "res1", "res2", "sys1", "sys2", "text1"}


@pytest.mark.parametrize("name", SMALL)
def test_a_trial_finds_the_one_repair_that_a_template_needs(name: str) -> None:
    assert template_of(TEMPLATES[name]).shapes == Shapes(**SMALL[name][-1])


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("name", TEMPLATES)
def test_nothing_of_a_history_is_lost(name: str, history: str) -> None:
    messages = HISTORIES[history]
    text = template_of(TEMPLATES[name]).render(read_messages(messages), tools=TOOLS)
    expected = {mark for mark in MARKS if mark in json.dumps(messages)} | {"lookup", "seek"}
    assert {mark for mark in expected if mark not in text} == set(), text


@pytest.mark.parametrize("name", TEMPLATES)
def test_items_of_responses_render_too(name: str) -> None:
    items = [
        {"role": "user", "content": "quest1"},
        {"type": "function_call", "call_id": "c1", "name": "lookup", "arguments": '{"key": "val1"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "res1"},
    ]
    text = template_of(TEMPLATES[name]).render(read_items(items), tools=TOOLS)
    assert all(mark in text for mark in ("quest1", "lookup", "val1", "res1"))


def test_a_conversation_that_nothing_mends_is_refused_in_the_templates_words() -> None:
    with pytest.raises(InvalidRequestError, match="never"):
        template_of("{{ raise_exception('never') }}").render([USER])
