"""Export of a trained model and its tokenizer as a Hugging Face folder; every file is whole at any moment."""

import json
from pathlib import Path

import torch
from corpus import END_OF_TEXT, END_OF_TURN, SPECIAL_TOKENS
from model import CONTEXT, ROPE_THETA, VOCABULARY, Llama, Shape
from safetensors.torch import save_file
from tokenizers import Tokenizer

TEMPLATE = """{%- for message in messages -%}
{%- set role = 'system' if message['role'] == 'developer' else message['role'] -%}
{{- '<|' + role + '|>\\n' + (message['content'] or '') + '<|end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|assistant|>\\n' -}}
{%- endif -%}
"""


def write_atomically(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def export(out: Path, model: Llama, tokenizer: Tokenizer, shape: Shape) -> None:
    end, turn = tokenizer.token_to_id(END_OF_TEXT), tokenizer.token_to_id(END_OF_TURN)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY, "hidden_size": shape.hidden, "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim, "max_position_embeddings": CONTEXT, "rope_theta": ROPE_THETA, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0,
        "initializer_range": 0.02, "tie_word_embeddings": True, "use_cache": True,
        "bos_token_id": end, "eos_token_id": end, "pad_token_id": end,
    }  # fmt: skip
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT, "model_max_length": CONTEXT, "clean_up_tokenization_spaces": False,
        "additional_special_tokens": SPECIAL_TOKENS[1:],
    }  # fmt: skip
    generation = {
        "bos_token_id": end, "eos_token_id": [end, turn], "pad_token_id": end,
        "do_sample": True, "temperature": 0.7, "top_p": 0.95,
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    for name, value in (("config", config), ("tokenizer_config", tokenizer_config), ("generation_config", generation)):
        write_atomically(out / f"{name}.json", json.dumps(value, indent=2) + "\n")
    write_atomically(out / "tokenizer.json", tokenizer.to_str(pretty=False) + "\n")
    write_atomically(out / "chat_template.jinja", TEMPLATE)
    weights = {f"model.{name}": weight.to(torch.bfloat16) for name, weight in model.state_dict().items()}
    save_file(weights, out / "model.safetensors.part", metadata={"format": "pt"})
    (out / "model.safetensors.part").chmod(0o644)  # safetensors makes files readable by their owner alone
    (out / "model.safetensors.part").replace(out / "model.safetensors")
