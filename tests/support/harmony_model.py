"""Tiny random gpt-oss model with harmony's special tokens and a chat template that writes harmony's messages."""

import json
from pathlib import Path

from tiny_models import save_model, write_config

_BOS, _EOS = "<|startoftext|>", "<|endoftext|>"
SPECIAL = (_BOS, _EOS, "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>", "<|call|>")
ENDS = ("<|return|>", "<|endoftext|>", "<|call|>")  # of generation_config.json
# As https://cookbook.openai.com/articles/openai-harmony describes the messages.
TEMPLATE = """{%- set ns = namespace(begun=false) -%}
<|start|>system<|message|>You are a tiny model.

Reasoning: {{ reasoning_effort | default("medium") }}

# Valid channels: analysis, commentary, final.<|end|>
{%- if tools -%}
<|start|>developer<|message|># Tools

## functions

namespace functions {
{%- for tool in tools %}
type {{ tool.function.name }} = (_: {{ tool.function.parameters | tojson }}) => any;
{%- endfor %}
}<|end|>
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == "assistant" and message.tool_calls -%}
{%- if message.thinking -%}
<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking }}<|end|>
{%- endif -%}
{%- for call in message.tool_calls -%}
{%- set ns.called = call.function.name -%}
<|start|>assistant to=functions.{{ call.function.name }}<|channel|>commentary json<|message|>
{{- call.function.arguments | tojson }}<|call|>
{%- endfor -%}
{%- elif message.role == "assistant" -%}
<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>
{%- elif message.role == "tool" -%}
<|start|>functions.{{ ns.called }} to=assistant<|channel|>commentary<|message|>{{ message.content }}<|end|>
{%- else -%}
<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""


def save_harmony_model(folder: Path) -> None:
    """Write the model, whose tokens are harmony's and bytes."""
    save_model("gpt-oss", folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    renamed = {token["content"]: text for token, text in zip(tokenizer["added_tokens"], SPECIAL, strict=False)}
    for token in tokenizer["added_tokens"]:
        token["content"] = renamed.get(token["content"], token["content"])
    vocab = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {renamed.get(token, token): token_id for token, token_id in vocab.items()}
    path.write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": _BOS, "eos_token": _EOS}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    write_config(folder, max_position_embeddings=4096)
    (folder / "generation_config.json").write_text(
        json.dumps({"bos_token_id": 0, "eos_token_id": [SPECIAL.index(text) for text in ENDS]})
    )
