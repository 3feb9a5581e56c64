"""Forms of calls and thoughts, asked of templates: what a template writes is read back, wherever the text is cut."""

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from published import needs_published, published

from splitfuse.engine import ChatForm
from splitfuse.engine.errors import ConfigError, InvalidRequestError
from splitfuse.engine.language.chat.chat_form import form_facts
from splitfuse.engine.language.chat.template import ChatTemplate

PUBLISHED = {path.stem: path.read_text() for path in sorted(published("conformance/templates").glob("*.jinja"))}
REFUSED = {"fireworks-ai-llama-3-firefunction-v2": "'functions' is undefined"}
# Templates that print no call.
SILENT = {
    *("HuggingFaceTB-SmolLM3-3B", "LFM2-8B-A1B", "google-gemma-2-2b-it", "llama-cpp-rwkv-world"),
    "microsoft-Phi-3.5-mini-instruct",
}
# The end of a value and of its call in one text without a space, as this template writes it, is an end.
AMBIGUOUS = {"GLM-5.2": ("</arg_value>", "</tool_call>")}
NUM_CALLS = 200
# Templates in packages that were unpacked into this folder.
UNPACKED = Path(os.environ.get("SPLITFUSE_TEMPLATES", "no-unpacked-packages"))
PACKAGED = {
    "GLM-4.5 (trl)": "trl/chat_templates/glm4moe.jinja",
    "LFM2.5 (trl)": "trl/chat_templates/lfm2_2_5.jinja",
    "Command A (axolotl)": "axolotl/utils/chat_templates/templates/command_a_tool_use.jinja",
    "Apertus (vLLM)": "examples/tool_chat_template_apertus.jinja",
    "Granite 3 (vLLM)": "examples/tool_chat_template_granite.jinja",
}
HEAD = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
)
LOOP = "{% for c in m.tool_calls or [] %}"
TAIL = "{% endfor %}[end]{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
ITEMS = "{% for k, v in c.function.arguments | items %}"
TYPED = "{{ v if v is string else v | tojson }}"
SMALL = {
    "hermes": HEAD + LOOP + "<tool_call>\n{{ c.function | tojson }}\n</tool_call>" + TAIL,
    "qwen3_coder": HEAD + LOOP + "<tool_call>\n<function={{ c.function.name }}>\n" + ITEMS
    + "<parameter={{ k }}>\n" + TYPED + "\n</parameter>\n{% endfor %}</function>\n</tool_call>\n" + TAIL,
    "pythonic": HEAD + "{% if m.tool_calls %}<|tool_call_start|>[" + LOOP + "{{ c.function.name }}(" + ITEMS
    + "{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %}){{ ', ' if not loop.last }}{% endfor %}]"
    + "<|tool_call_end|>{% endif %}[end]{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
    "minimax": HEAD + "{% if m.tool_calls %}<minimax:tool_call>\n" + LOOP + '<invoke name="{{ c.function.name }}">\n'
    + ITEMS + '<parameter name="{{ k }}">' + TYPED + "</parameter>\n{% endfor %}</invoke>\n{% endfor %}"
    + "</minimax:tool_call>{% endif %}[end]{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
    "bare list": HEAD + "{% if m.tool_calls %}[" + LOOP + '{"name": "{{ c.function.name }}", "arguments": '
    + "{{ c.function.arguments | tojson }}}{{ ', ' if not loop.last }}{% endfor %}]{% endif %}[end]{% endfor %}"
    + "{% if add_generation_prompt %}[assistant]{% endif %}",
}  # fmt: skip
UNESCAPED = '{{ "\'" ~ v ~ "\'" if v is string else v }}'
SMALL |= {
    "unescaped": SMALL["pythonic"].replace("{{ v | tojson }}", UNESCAPED),
    "all in quotes": SMALL["pythonic"].replace("{{ v | tojson }}", "<q>{{ v }}<q>"),
    "recipients": "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}<|start|>{{ m.role }}"
    + "{% if m.reasoning_content %} to=self<|msg|>{{ m.reasoning_content }}<|eom|><|start|>assistant{% endif %}"
    + "{% if m.tool_calls %}" + LOOP + " to={{ c.function.name }}<|msg|><call name={{ c.function.name }}>"
    + "{{ c.function.arguments | tojson }}</call>{{ '<|eom|><|start|>assistant' if not loop.last }}{% endfor %}"
    + "{% else %}{{ ' to=user' if m.role == 'assistant' }}<|msg|>{{ m.content }}{% endif %}<|end|>{% endfor %}"
    + "{% if add_generation_prompt %}<|start|>assistant{% endif %}",
    "response": SMALL["hermes"].replace("{{ m.content or '' }}",
        "{{ '<|START_RESPONSE|>' ~ m.content ~ '<|END_RESPONSE|>' if m.content and m.role == 'assistant'"
        + " else m.content or '' }}"),
}  # fmt: skip
SMALL["open thinking"] = (
    SMALL["qwen3_coder"]
    .replace("[assistant]", "[assistant]<think>\n")
    .replace(
        "{{ m.content", "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content"
    )
)
TEMPLATES = SMALL | PUBLISHED
CALLING = [name for name in TEMPLATES if name not in REFUSED and name not in SILENT]
WORDS = [
    *("a", "é", "日本", "👩‍🚀", "<b>", "</tool_call>", "</parameter>", "</function>", "<think>", "</think>"),
    *('"', "'", "\\", "\n"),
    *("  ", "{", "}", "[", "]", ",", ":", "true", "None", "12", "<tool_call>", "[TOOL_CALLS]", "<|im_end|>", "```"),
    *("</arg_value>", "<arg_key>", "</invoke>", "x = 1", "(", ")", '{"name": "f"}', "<parameter=a>"),
]
PAGE = Path(__file__).parents[4] / "server/docs/structured_output.md"
KINDS = {str: "string", int: "integer", bool: "boolean", float: "number", list: "array", dict: "object"}


def random_text(rng: random.Random) -> str:
    return "".join(rng.choice(WORDS) for _ in range(rng.randint(0, 8)))


def random_value(rng: random.Random, depth: int = 0) -> Any:
    simple = [random_text(rng), random_text(rng), rng.randint(-(10**9), 10**9), rng.choice([True, False, None]), 1e-7]
    if depth < 2 and rng.random() < 0.4:
        items = [random_value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
        return rng.choice([items, dict(zip(("k", "key two", "ä"), items, strict=False))])
    return rng.choice(simple)


def random_call(rng: random.Random) -> tuple[tuple[str, dict[str, Any]], dict[str, Any]]:
    """Return a call, and the tool that it calls."""
    name = rng.choice(["get_weather", "a", "x.y-z", "write_file2"]) + str(rng.randrange(10**6))
    arguments = {key: random_value(rng) for key in rng.sample(["city", "days", "deep_key", "Q"], rng.randint(0, 4))}
    properties = {key: {"type": KINDS.get(type(value), "null")} for key, value in arguments.items()}
    parameters = {"type": "object", "properties": properties}
    function = {"name": name, "description": "Does it.", "parameters": parameters}
    return (name, arguments), {"type": "function", "function": function}


def read_in_pieces(form: ChatForm, text: str, tools: Any, rng: random.Random, longest: int) -> Any:
    reader = form.reader(tools)
    while text:
        length = rng.randint(1, longest)
        reader.feed(text[:length])
        text = text[length:]
    return reader.end()


@pytest.mark.parametrize("name", CALLING)
def test_calls_are_read_back_as_the_template_writes_them(name: str) -> None:
    form = ChatForm.derive(TEMPLATES[name], bos_token="<s>", eos_token="</s>")
    rng = random.Random(7)
    for _ in range(NUM_CALLS):
        pairs = [random_call(rng) for _ in range(rng.randint(1, 3) if form.has_parallel_calls else 1)]
        calls, tools = [call for call, _ in pairs], [tool for _, tool in pairs]
        if any("".join(AMBIGUOUS.get(name, "\0")) in json.dumps(call) for call in calls):
            continue
        text = form.render_calls(calls, tools=tools)
        answer = form.read(text, tools=tools)
        assert (answer.calls, answer.content, answer.reasoning) == (calls, "", ""), text
        assert read_in_pieces(form, text, tools, rng, rng.choice([1, 9, 50])) == answer, text


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in REFUSED])
def test_thoughts_content_and_calls_come_apart(name: str) -> None:
    form = ChatForm.derive(TEMPLATES[name])
    opening, closing = (form.reasoning.openings[0], form.reasoning.closings[0]) if form.reasoning else ("", "")
    head = f"{opening}\nt1 < t2\n{closing}\n\n" if form.has_reasoning else ""
    if head and form.calls and form.calls.arguments == "channels":
        head += "<|channel|>final<|message|>"
    text = f"{head}So it is."
    calls: list[Any] = []
    is_bare = form.calls is None or not form.calls.trigger
    if not is_bare:
        calls = [("lookup", {"key": "k7"})]
        text += f"\n\n{form.render_calls(calls)}"
    answer = form.read(text)
    assert answer.calls == calls
    assert answer.content.strip() == "So it is."
    assert answer.reasoning == ("t1 < t2" if head else "")
    assert read_in_pieces(form, text, None, random.Random(1), 1) == answer
    assert form.has_reasoning == (name in {"open thinking", "recipients"}) or name in PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_form_is_derived_or_refused_by_name(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(ConfigError, match=REFUSED[name]):
            ChatForm.derive(PUBLISHED[name])
        return
    begin = time.process_time()
    form = ChatForm.derive(PUBLISHED[name])
    assert time.process_time() - begin < 0.5, "under 50 ms beside a process that does nothing else"
    assert form.has_calls == (name not in SILENT)
    if not form.has_calls:
        assert form.read("<tool_call>{}</tool_call>").content == "<tool_call>{}</tool_call>", "never taken for Hermes"
        with pytest.raises(InvalidRequestError):
            form.render_calls([("f", {})])


def row(name: str, template: str) -> str:
    """Return the line of the documents for a template."""
    if name in REFUSED:
        return f"|{name}|refused||||"
    form = ChatForm.derive(template)
    kind, number = "none", ""
    if form.calls is not None:
        kind = "object" if form.calls.name_key else form.calls.arguments
        number = "many" if form.has_parallel_calls else "one"
    texts = [form.calls.trigger if form.calls else "", form.reasoning.openings[0] if form.reasoning else ""]
    lines = [text.partition("\n")[0].replace("|", "\\|") for text in texts]
    trigger, opening = (f"`{line}`" if line else "" for line in lines)
    return f"|{name}|{kind}|{trigger}|{number}|{opening}|"


@needs_published
def test_the_documents_say_what_was_derived() -> None:
    table = "\n".join(row(name, template) for name, template in PUBLISHED.items())
    assert table in PAGE.read_text(), f"{PAGE} needs these rows:\n{table}"


@pytest.mark.parametrize("name", PACKAGED)
def test_the_documents_say_what_packages_carry(name: str) -> None:
    path = UNPACKED / PACKAGED[name]
    if not path.is_file():
        pytest.skip("SPLITFUSE_TEMPLATES names no folder with this file")
    assert row(name, path.read_text()) in PAGE.read_text(), row(name, path.read_text())


def test_calls_that_cannot_be_read_back_are_refused() -> None:
    source = HEAD + LOOP + "<call>{{ c.function.name }} {{ c.function.arguments.values() | list | length }}" + TAIL
    assert not ChatForm.derive(source).has_calls, "the arguments do not appear"
    joined = HEAD + LOOP + "<call>{{ c.function.name }} {{ c.function.arguments.values() | join('&') }}" + TAIL
    with pytest.raises(ConfigError, match="does not show a call's arguments after its name"):
        ChatForm.derive(joined)
    unquoted = HEAD + LOOP + "<call>{{ c.function.name }}(" + ITEMS + "{{ k }}='{{ v }}',{% endfor %})" + TAIL
    with pytest.raises(ConfigError, match="not read back as they were"):
        ChatForm.derive(unquoted)
    told = "{{ '[func_name1(key=value)]' if tools }}"
    assert form_facts(ChatTemplate(told + unquoted, special_tokens={}))["calls"] == "llama4_pythonic"


def test_reasoning_is_derived_where_calls_are_not() -> None:
    joined = HEAD + LOOP + "<call>{{ c.function.name }} {{ c.function.arguments.values() | join('&') }}" + TAIL
    thought = "{% if m.reasoning_content %}<seed:think>{{ m.reasoning_content }}</seed:think>{% endif %}{{ m.content"
    facts = form_facts(ChatTemplate(joined.replace("{{ m.content", thought), special_tokens={}))
    assert "does not show a call's arguments" in facts["error"]
    assert facts["calls"] is None
    assert facts["reasoning"]["openings"] == ("<seed:think>",)


def test_a_declared_form_says_more_than_a_bare_object_or_no_call() -> None:
    example = '<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>'
    told = "{% if tools %}{{ tools | tojson }} " + example + "{% endif %}"
    silent = told + "{% for m in messages %}{{ m.content }}{% endfor %}"
    facts = form_facts(ChatTemplate(silent, special_tokens={}))
    assert facts == {"calls": "hermes", "content_tags": [], "hidden": ["calls"], "reasoning": None}
    tag = silent.replace(example, "Write <tool_call>.")
    assert form_facts(ChatTemplate(tag, special_tokens={}))["calls"] is None, "never taken for Hermes"
    pythonic = SMALL["bare list"].replace("{% for t", "{{ '[func_name1(key=value)]' if tools }}{% for t", 1)
    assert form_facts(ChatTemplate(pythonic, special_tokens={}))["calls"] == "llama4_pythonic"


TOOLS = [
    {"type": "function", "function": {"name": "put", "parameters": {"type": "object", "properties": {
        "s": {"type": "string"}, "n": {"type": "integer"}}}}},
]  # fmt: skip
PUT = [("put", {"s": "ab", "n": 3})]
OPEN, S, N = "<tool_call>\n<function=put>\n", "<parameter=s>\nab\n", "<parameter=n>\n3\n"
END, CLOSE = "</parameter>\n", "</function>\n</tool_call>"
TAGGED = f"{OPEN}{S}{END}{CLOSE}"
MINIMAX = '<invoke name="put"><parameter name="s">ab</parameter><parameter name="n">3</parameter></invoke>'
CALL = ' to=put<|msg|><call name=put>{"s": "ab", "n": 3}</call>'
# Template, text, calls, content, reasoning.
ODD: list[tuple[str, str, list[Any], str, str]] = [
    ("qwen3_coder", f"{OPEN}{S}{N}{END}{CLOSE}", PUT, "", ""),
    ("qwen3_coder", f"{OPEN}{S}{END}{N}</tool_call>", PUT, "", ""),
    ("qwen3_coder", f"{OPEN}{S}{END}{N}{CLOSE}\n{OPEN}{CLOSE}", [*PUT, ("put", {})], "", ""),
    ("qwen3_coder", f"{OPEN}hello", [], f"{OPEN}hello", ""),
    ("hermes", '<tool_call>{"name": "put", "arguments": {"s": "close with </tool_call> here"}}</tool_call>',
     [("put", {"s": "close with </tool_call> here"})], "", ""),
    ("hermes", '<tool_call>{"name": "put", "arguments": not json}</tool_call>', [],
     '<tool_call>{"name": "put", "arguments": not json}</tool_call>', ""),
    ("hermes", '<tool_call>{"name": "put", "arguments": {"s": "cu', [],
     '<tool_call>{"name": "put", "arguments": {"s": "cu', ""),
    ("hermes", 'Soon.<tool_call>{"name": "put", "arguments": {}} <tool_call>\n{"arguments": {"n": 1}, "name": "put"}',
     [("put", {}), ("put", {"n": 1})], "Soon.", ""),
    ("hermes", "<tool_call>put\n<arg_key>s</arg_key>", [], "<tool_call>put\n<arg_key>s</arg_key>", ""),
    ("open thinking", f"t5\n{TAGGED}", [("put", {"s": "ab"})], "", "t5"),
    ("open thinking", f"t5 {TAGGED}</think>Answer.", [], "Answer.", f"t5 {TAGGED}"),
    ("open thinking", f"t5 {TAGGED.replace('ab', 'the </think> tag')}", [("put", {"s": "the </think> tag"})], "", "t5"),
    ("open thinking", "t5 <tool_call> is a tag</think>Answer.", [], "Answer.", "t5 <tool_call> is a tag"),
    ("pythonic", "<|tool_call_start|>[put(s='it\\'s', n=3)]<|tool_call_end|>Wait.", [("put", {"s": "it's", "n": 3})],
     "Wait.", ""),
    ("bare list", '[{"name": "Bob", "age": 5}]', [], '[{"name": "Bob", "age": 5}]', ""),
    ("bare list", 'Names: [{"name": "put"}]', [], 'Names: [{"name": "put"}]', ""),
    ("minimax", f"<minimax:tool_call>{MINIMAX}</minimax:tool_call>", PUT, "", ""),
    ("recipients", " to=self<|msg|>t5<|eom|><|start|>assistant to=user<|msg|>Hi", [], "Hi", "t5"),
    ("recipients", f" to=self<|msg|>t5<|eom|><|start|>assistant{CALL}<|eom|><|start|>assistant{CALL}", [*PUT, *PUT],
     "", "t5"),
    ("response", "<|START_RESPONSE|>So<|END_RESPONSE|>", [], "So", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "calls", "content", "reasoning"), ODD)
def test_answers_that_no_template_would_write(
    name: str, text: str, calls: list[Any], content: str, reasoning: str
) -> None:
    form = ChatForm.derive(TEMPLATES[name])
    answer = form.read(text, TOOLS)
    assert (answer.calls, answer.content, answer.reasoning) == (calls, content, reasoning)
    assert read_in_pieces(form, text, TOOLS, random.Random(1), 1) == answer
