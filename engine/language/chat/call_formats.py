"""CALL_FORMATS: syntaxes in which models write calls of tools, under vLLM's names for its parsers."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .call_syntax import ID, CallSyntax
from .harmony_parser import CHANNEL, CONSTRAIN, MESSAGE

Style = str | Mapping[str, Any]  # a name, or the fields of a CallSyntax or of a ReasoningFormat
NEUTRAL_FORMAT = "hermes"  # for models whose template shows no format; shapes.py describes it in the prompt

_OBJECT = CallSyntax(
    arguments="json",
    name_open='{"name": "',
    middle='", "arguments": ',
    arguments_close="}",
    name_key="name",
    arguments_key="arguments",
)


def _listed(opening: str, closing: str = "") -> CallSyntax:
    return replace(_OBJECT, before=f"{opening}[", between=", ", after=f"]{closing}")


_HERMES = replace(_OBJECT, opening="<tool_call>\n", closing="\n</tool_call>", between="\n")
_LLAMA = replace(_OBJECT, middle='", "parameters": ', arguments_key="parameters", between="; ", after=";")
_MISTRAL = CallSyntax(arguments="json", opening="[TOOL_CALLS]", middle="[ARGS]", between="")
_MISTRAL_OTHERS = (replace(_MISTRAL, middle=f"[CALL_ID]{ID}[ARGS]"), replace(_MISTRAL, middle=""))
_MISTRAL_LIST = _listed("[TOOL_CALLS]")
_DEEPSEEK_V31 = CallSyntax(
    arguments="json",
    before="<｜tool▁calls▁begin｜>",
    opening="<｜tool▁call▁begin｜>",
    middle="<｜tool▁sep｜>",
    closing="<｜tool▁call▁end｜>",
    between="",
    after="<｜tool▁calls▁end｜>",
)
_DEEPSEEK_V3 = replace(
    _DEEPSEEK_V31,
    opening="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    middle="\n```json\n",
    closing="\n```<｜tool▁call▁end｜>",
    between="\n",
)
_XML = CallSyntax(
    arguments="tags",
    opening="<tool_call>\n<function=",
    middle=">",
    key_open="\n<parameter=",
    value_open=">\n",
    value_close="\n</parameter>",
    closing="\n</function>\n</tool_call>",
    between="\n",
)
_QUOTED = replace(_XML, opening='<tool_call>\n<function="', middle='">')
# Models leave out the first tag.
_FUNCTION = replace(_XML, opening="<function=", closing="\n</function>", after="\n</tool_call>")
_QWEN3_CODER = replace(_XML, others=(_QUOTED, _FUNCTION))
_PYTHONIC = CallSyntax(
    arguments="keywords",
    before="[",
    middle="(",
    value_open="=",
    separator=", ",
    quote='"',
    closing=")",
    between=", ",
    after="]",
)
_LLAMA4 = replace(_PYTHONIC, others=(replace(_PYTHONIC, before="<|python_start|>[", after="]<|python_end|>"),))
CALL_FORMATS = {
    "openai": CallSyntax(
        arguments="channels", name_open=f"{CHANNEL}commentary to=functions.", middle=f" {CONSTRAIN}json{MESSAGE}"
    ),
    "qwen3_coder": _QWEN3_CODER,
    "qwen3_xml": _QWEN3_CODER,
    "hermes": replace(_HERMES, others=(_listed("<tool_call>", "</tool_call>"),)),
    "mistral_list": replace(_MISTRAL_LIST, others=(_MISTRAL, *_MISTRAL_OTHERS)),
    "mistral": replace(_MISTRAL, others=(*_MISTRAL_OTHERS, _MISTRAL_LIST)),
    "deepseek_v3": replace(_DEEPSEEK_V3, others=(_DEEPSEEK_V31,)),
    "deepseek_v31": replace(_DEEPSEEK_V31, others=(_DEEPSEEK_V3,)),
    "granite": replace(_listed("<|tool_call|>"), others=(_listed("<tool_call>"),)),
    "phi4_mini_json": _listed("functools"),
    "llama4_pythonic": _LLAMA4,
    "pythonic": _LLAMA4,
    # Its templates print no call, so earlier calls stand in the prompt in Hermes' form.
    "lfm2": replace(_PYTHONIC, before="<|tool_call_start|>[", after="]<|tool_call_end|>", others=(_HERMES,)),
    "llama3_json": replace(_LLAMA, others=(replace(_LLAMA, before="<|python_tag|>"),)),
}
# What prompts with tools say of calls, for templates that print no call, or one without a tag. LFM2's show only tools.
_DECLARED = (
    ("hermes", r'<tool_call>\s*\{\s*"name":[^{}]*"arguments":'),
    ("qwen3_coder", r"<tool_call>\s*<function=[^<>]+>\s*<parameter="),
    ("granite", r"<\|tool_call\|> followed by a JSON list"),
    ("phi4_mini_json", r"functools\[\{"),
    ("llama4_pythonic", r"\[func_name1\("),
    ("lfm2", r"<\|im_start\|>system\nList of tools: (<\|tool_list_start\|>)?\["),
)


def declared_format(prompt: str) -> str | None:
    """Return the name of the format that a prompt with tools shows the model by an example; None if it shows none."""
    return next((name for name, example in _DECLARED if re.search(example, prompt)), None)


def call_syntax(style: Style) -> CallSyntax:
    """Return a syntax by its name or from its fields."""
    return CALL_FORMATS[style] if isinstance(style, str) else CallSyntax(**{**style, "others": ()})
