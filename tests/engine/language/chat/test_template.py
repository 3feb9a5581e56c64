"""Chat templates give the text of transformers' apply_chat_template; a refusal is the request's error."""

import contextlib
import itertools
import json
import tracemalloc
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from published import needs_published, published
from tiny_models import byte_tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from splitfuse.engine import LLM
from splitfuse.engine.errors import ConfigError, InvalidRequestError
from splitfuse.engine.language.chat.messages import read_messages
from splitfuse.engine.language.chat.template import ChatTemplate
from splitfuse.engine.language.chat.tools import read_tools
from splitfuse.engine.language.text.tokenizer import Tokenizer

TEMPLATES = {
    "roles in brackets": """{{ bos_token }}{% for m in messages %}
<|{{ m.role }}|>{{ m.content | trim }}{{ eos_token }}
{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}""",
    "alternating, with the system text inside": """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] ~ ' ' %}{% set turns = messages[1:] %}
{%- else %}
    {%- set system = '' %}{% set turns = messages %}
{%- endif %}
{%- for message in turns %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' ~ (system if loop.first else '') ~ message.content ~ ' [/INST]' }}
    {%- else %} {{ message.content }}{{ eos_token }}{%- endif %}
{%- endfor %}""",
    "tools, calls and results": """{%- if tools %}{{ '<sys>' }}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{{ '</sys>' }}{% endif %}
{%- for m in messages %}
    {%- if m.role == 'assistant' and m.tool_calls %}
        {{- m.content if m.content is defined else 'NOTHING' }}
        {%- for call in m.tool_calls %}
            {{- '<tool_call>' ~ call.function.name ~ (call.function.arguments | tojson(indent=2)) }}
        {%- endfor %}
    {%- elif m.role == 'tool' %}<result {{ m.tool_call_id }}>{{ m.content }}</result>
    {%- else %}{{ m.role }}: {{ m.content }}
    {% endif %}
{%- endfor %}{{ 'assistant: ' if add_generation_prompt }}""",
    "thinking": """{%- set ns = namespace(last=-1) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'assistant' and m.reasoning_content is defined and loop.index0 > ns.last %}
        {{- '<think>' ~ m.reasoning_content ~ '</think>' }}
    {%- endif %}
    {{- m.role }}/{{ m.get('content', '') }}
    {% if loop.index0 > 1 %}{% break %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}assistant/
    {%- if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}
{%- endif %}""",
    "marks of training": """{% for m in messages %}
{% if m.role == 'assistant' %}{% generation %}{{ m.content }}!{% endgeneration %}
{% else %}{{ m.content }}{{ dict(a=1, **{'b': 'é<&>'}) | tojson }}{% endif %}
{% endfor %}""",
    "a date": "{{ strftime_now('%Y-%m-%d') }}{% for m in messages %}{{ m.content }}{% endfor %}",
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'The weather in a town: 5 < 6 & "so" ☕',
            "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
        },
    }
]
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Köln", "n": [1]}'}}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "  Hello\n"}],
    [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
    [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL], "reasoning_content": "I should look."},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain <b>"},
        {"role": "assistant", "content": "It rains. ", "reasoning_content": "Seen."},
    ],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": " b "},
        {"role": "user", "content": "👩‍👩 日本"},
    ],
]


@pytest.fixture(params=TEMPLATES)
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Tokenizer, PreTrainedTokenizerFast]:
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(), bos_token="<bos>", eos_token="<eos>", chat_template=TEMPLATES[request.param]
    )
    theirs.save_pretrained(tmp_path)
    return Tokenizer(tmp_path), theirs


def outcome(render: Any) -> str:
    """Return the text, or a mark for a refusal."""
    try:
        return str(render())
    except (InvalidRequestError, TemplateError, TypeError, ValueError):
        return "refused"


def test_renders_as_transformers_does(both: tuple[Tokenizer, PreTrainedTokenizerFast]) -> None:
    ours, theirs = both
    num_texts = 0
    for messages, tools, mode, variables in itertools.product(
        CONVERSATIONS, [None, TOOLS], ["prompt", "plain", "continue"], [{}, {"enable_thinking": False}]
    ):
        options = {"add_generation_prompt": mode == "prompt", "continue_final_message": mode == "continue"}
        read = read_messages(messages)
        expected = outcome(
            lambda: theirs.apply_chat_template(read, tools=tools, tokenize=False, **options, **variables)  # noqa: B023
        )
        got = outcome(lambda: ours.render_chat(read, tools=tools, repairs=False, variables=variables, **options))  # noqa: B023
        assert got == expected
        if expected != "refused":
            num_texts += 1
            ids = theirs.apply_chat_template(read, tools=tools, return_dict=False, **options, **variables)
            assert ours.encode(got, add_special_tokens=False) == ids
    assert num_texts > 10


@needs_published
def test_published_conversations_render_as_by_transformers() -> None:
    """Kimi K2's template fills a list, which only this sandbox allows; of all others none differs."""
    tokens, better = {"bos_token": "<s>", "eos_token": "</s>"}, []
    conversations = json.loads(published("conformance/conversations.json").read_text())
    for path in sorted(published("conformance/templates").glob("*.jinja")):
        source = path.read_text()
        ours = ChatTemplate(source, special_tokens=tokens)
        for asked in conversations:
            read, tools = read_messages(asked["messages"]), read_tools(asked["tools"]) or None
            options = {"add_generation_prompt": True, "continue_final_message": False}
            options |= {name: asked[name] for name in options if name in asked}
            got = outcome(lambda: ours.render(read, tools=tools, repairs=False, **options))  # noqa: B023
            theirs = {"conversations": [read], "tools": tools, "chat_template": source, **options, **tokens}
            expected = outcome(lambda: render_jinja_template(**theirs)[0][0])  # noqa: B023
            if got != expected:
                assert expected == "refused", (path.stem, asked["name"])
                better.append(path.stem)
    assert better == ["Kimi-K2-Instruct"] * 9


def test_a_template_for_tools_beside_the_plain_one(tmp_path: Path) -> None:
    theirs = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer())
    theirs.chat_template = {"default": "plain {{ tools }}", "tool_use": "with {{ tools | length }}"}
    theirs.save_pretrained(tmp_path)
    in_files = Tokenizer(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    named = [{"name": name, "template": text} for name, text in theirs.chat_template.items()]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": named}))
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").unlink()
    in_config = Tokenizer(tmp_path)
    for tools in (None, TOOLS):
        expected = theirs.apply_chat_template(CONVERSATIONS[0], tools=tools, tokenize=False)
        for ours in (in_files, in_config):
            assert ours.apply_chat_template(CONVERSATIONS[0], tools=tools, tokenize=False) == expected


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, special_tokens={})


def test_the_templates_own_words_reach_the_user() -> None:
    with pytest.raises(InvalidRequestError, match="only user speaks here") as info:
        template("{{ raise_exception('only user speaks here') }}").render(CONVERSATIONS[0])
    assert info.value.param == "messages"
    with pytest.raises(InvalidRequestError, match="cannot render these messages") as info:
        template("{{ messages[7].content.x }}").render(CONVERSATIONS[0])
    assert len(str(info.value)) < 500
    with pytest.raises(InvalidRequestError) as info:
        template("{{ raise_exception('x' * 10000) }}").render(CONVERSATIONS[0])
    assert len(str(info.value)) < 500


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['sys'].modules }}",
        "{{ dict.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ namespace(_x=1) }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ lipsum.__globals__ }}",
        "{% set _ = messages.clear() %}",
        "{% set _ = messages[0].update(role='x') %}",
        "{{ '{0.__class__}'.format(1) }}",
        "{% include '/etc/passwd' %}",
        "{% for i in range(10**9) %}x{% endfor %}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(source: str) -> None:
    messages = [{"role": "user", "content": "x"}]
    with contextlib.suppress(InvalidRequestError):
        assert template(source).render(messages) == "", "what is hidden is refused or undefined"
    assert messages == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("constant", ["'x' * 20000000", "'x' | center(20000000)", "'x' | replace('x', 'y' * 20000000)"])
def test_to_compile_a_template_computes_nothing(constant: str) -> None:
    tracemalloc.start()
    try:
        compiled = template(f"{{{{ ({constant}) | length }}}}{{% if {constant} %}}!{{% endif %}}")
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert compiled.render(CONVERSATIONS[0]) == "20000000!"
    with pytest.raises(ConfigError, match="autoescape"):
        template(f"{{% autoescape {constant} %}}{{% endautoescape %}}")


def test_a_template_that_nests_too_deeply_stops_the_start() -> None:
    with pytest.raises(ConfigError, match="nests too deeply"):
        template("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}")


def test_the_final_message_goes_on() -> None:
    messages = [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "one, two,  "}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    keeping = template("{% for m in messages %}{{ m.role }}:{{ m.content }}<end>{% endfor %}")
    assert keeping.render(messages, **options) == "user:Count<end>assistant:one, two,  "
    trimming = template("{% for m in messages %}{{ m.role }}:{{ m.content | trim }}<end>{% endfor %}")
    assert trimming.render(messages, **options) == "user:Count<end>assistant:one, two,"
    for source, conversation in [("{{ messages[0].content }}", messages), (keeping.source, [{"role": "assistant"}])]:
        with pytest.raises(InvalidRequestError) as info:
            template(source).render(conversation, **options)
        assert info.value.param == "continue_final_message"


@pytest.mark.parametrize("inline", [True, False])
def test_another_template_can_be_named(inline: bool, tmp_path: Path) -> None:
    source = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    path = tmp_path / "mine.jinja"
    path.write_text(source)
    llm = LLM(load_format="dummy", dtype="float32", num_kv_blocks=8, chat_template=source if inline else str(path))
    assert llm.tokenizer is not None
    assert llm.tokenizer.render_chat(CONVERSATIONS[1]) == "[Be kind.][Hi]"


@pytest.mark.parametrize(
    ("setting", "words"),
    [("no/such/file", "neither a template nor a file"), ("{% for x %}", "--chat-template: the chat")],
)
def test_a_template_that_is_none_stops_the_start(setting: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LLM(load_format="dummy", chat_template=setting)


def test_dates_are_today() -> None:
    assert template("{{ strftime_now('%Y') }}").render(CONVERSATIONS[0]) == str(datetime.now().year)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ("hello", "messages"),
        ([], "messages"),
        (["hello"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "x" * 65, "content": "x"}], "messages[0].role"),
        ([{"role": "' + x + '", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "tool", "tool_call_id": "x"}], "messages[0].content"),
        ([{"role": "tool", "tool_call_id": 5, "content": "x"}], "messages[0].tool_call_id"),
        ([{"role": "user", "content": "x", "name": 5}], "messages[0].name"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content"),
        ([{"role": "user", "content": "x", "tool_calls": [CALL]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "content": "x", "audio": {"id": "a"}}], "messages[0].audio"),
        ([{"role": "assistant", "tool_calls": CALL}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": ["x"]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": [{**CALL, "id": 5}]}], "messages[0].tool_calls[0].id"),
        ([{"role": "assistant", "content": "x", "reasoning_content": 5}], "messages[0].reasoning_content"),
    ],
)
def test_messages_that_make_no_sense_are_named(messages: object, param: str) -> None:
    with pytest.raises(InvalidRequestError) as info:
        read_messages(messages)
    assert info.value.param == param


@pytest.mark.parametrize("arguments", ['{"a', "[1]", '"x"', "5", "[" * 100_000])
def test_arguments_of_a_call_that_was_cut_stay_text(arguments: str) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    messages = read_messages([{"role": "assistant", "tool_calls": [call]}])
    assert messages[0]["tool_calls"][0]["function"]["arguments"] == arguments
    added = "{% for c in messages[0].tool_calls %}{{ '>' + c.function.arguments }}{% endfor %}"
    assert template(added).render(messages, repairs=False) == ">" + arguments
    listed = "{% for c in messages[0].tool_calls %}{% for k, v in c.function.arguments|items %}{{ v }}{% endfor %}"
    listed += "{% endfor %}"
    assert template(listed).render(messages, repairs=False) == arguments


@pytest.mark.parametrize("arguments", ["null", " null ", "", None, "{}"])
def test_arguments_that_say_nothing_are_an_empty_object(arguments: str | None) -> None:
    messages = read_messages(
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]
    )
    assert messages[0]["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize("arguments", [5, [1]])
def test_arguments_that_are_no_object_are_named(arguments: object) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    with pytest.raises(InvalidRequestError) as info:
        read_messages([{"role": "assistant", "tool_calls": [call]}])
    assert info.value.param == "messages[0].tool_calls[0].function.arguments"


def test_arguments_are_text_where_a_template_adds_them_to_text() -> None:
    """Render a template like DeepSeek's, where transformers' own rendering raises."""
    source = "{% for c in messages[0].tool_calls %}{{ '```json\n' + c.function.arguments + '\n```' }}{% endfor %}"
    call = {"function": {"name": "f", "arguments": {"town": "Köln", "n": None}}}
    text = template(source).render([{"role": "assistant", "tool_calls": [call]}], repairs=False)
    assert text == '```json\n{"town": "Köln", "n": null}\n```'


def test_reasoning_under_the_name_that_gpt_oss_reads() -> None:
    template = ChatTemplate(
        """{% for message in messages %}{% if message.content and message.thinking and message.tool_calls %}
{{ raise_exception("both") }}{% endif %}[{{ message.thinking }}|{{ message.content }}]{% endfor %}""",
        special_tokens={},
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for fields, expected in (
        ({"content": "yes", "reasoning_content": "hm"}, "[hm|yes]"),
        ({"content": None, "reasoning_content": "hm", "tool_calls": [call]}, "[hm|]"),
        ({"content": "wait", "reasoning_content": "hm", "tool_calls": [call]}, "[|wait]"),
    ):
        assert template.render(read_messages([{"role": "assistant", **fields}]), repairs=False) == expected
