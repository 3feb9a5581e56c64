"""Small random models, made with transformers' own config classes, and transformers' outputs of them.

tiny_models.json has each model's config class, the bases of its fields, and the fields that it has beside them. The
range of initial weights is so wide that logits are far apart compared with float32 rounding. gemma2's hidden size is
one whose square root bfloat16 changes. phi3-longrope's original length is the longest, so its short factors hold for
all lengths. llama4's chunks have 32 positions, and its queries grow every 64. transformers limits the time steps of
nemotron-h by time_step_min in prompts and not in answers.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

VOCAB_SIZE = 271  # not a multiple of 64, like real vocabularies
MAX_LEN = 512
_QKV = ("q_proj", "k_proj", "v_proj", "c_attn", "query_key_value")
_TABLES = json.loads(Path(__file__).with_suffix(".json").read_text())


def _configs(kind: str) -> dict[str, PretrainedConfig]:
    configs = {}
    for name, (class_name, bases, fields) in _TABLES[kind].items():
        all_fields: dict[str, Any] = {}
        for base in bases:
            all_fields |= _TABLES["bases"][base]
        configs[name] = getattr(transformers, class_name)(**all_fields | fields)
    return configs


CONFIGS = _configs("configs")
HYBRIDS = _configs("hybrids")  # recurrent states in some layers
VARIANTS = set(_TABLES["variants"])  # their family, or nearest family, is tested at full length by another model


def make_model(name: str) -> PreTrainedModel:
    """Return a seeded random model in float32 of CONFIGS or HYBRIDS, with biases and norms that are not trivial."""
    torch.manual_seed(1234)
    model = AutoModelForCausalLM.from_config((CONFIGS | HYBRIDS)[name], dtype=torch.float32).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            is_norm = "norm" in key or "ln_" in key
            if key.endswith("bias"):
                # Large only if the rotation makes it depend on the position: otherwise a bias would decide all outputs.
                parameter.normal_(0.0, 0.5 if any(part in key for part in _QKV) else 0.1)
            elif is_norm:
                parameter.uniform_(0.5, 1.5)
                if name.startswith(("gemma4", "gemma3n")):  # begin with large embeddings, too
                    parameter.add_(1.0 if "post_" in key and name == "gemma3n" else 3.0 if "post_" in key else 0.0)
                elif name.startswith("gemma"):  # Gemma stores weights less 1, and begins with large embeddings
                    parameter.add_(2.0 if "post_" in key and name != "gemma" else -1.0)
                elif name.startswith(("qwen3.5", "qwen3-next")) and "linear_attn" not in key:
                    parameter.add_(-1.0)
            elif key.endswith(".A_log"):
                parameter.uniform_(-3.0, 1.0)
            elif key.endswith((".D", ".self_attn.sinks")):
                parameter.normal_()
            elif key.endswith(("router.scale", "per_expert_scale", "correct_output_scale")):
                parameter.uniform_(0.5, 1.5)
        for key, buffer in model.named_buffers():
            if key.endswith(("e_score_correction_bias", "expert_bias")):
                buffer.normal_(0.0, 0.1)
            elif key.endswith("layer_scalar"):
                buffer.fill_(0.8)
    return model


def save_model(name: str, folder: Path, *, shards: int = 1) -> PreTrainedModel:
    """Write a model and a tokenizer in Hugging Face format, in `shards` files."""
    model = make_model(name)
    size = sum(p.numel() * 4 for p in model.parameters())
    model.save_pretrained(folder, max_shard_size=size if shards == 1 else size // shards)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return model


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer of bytes after 15 special tokens: any text has ids, and most ids end within a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<bos>", "<eos>", *(f"<s{i}>" for i in range(13))]
    vocab = {token: i for i, token in enumerate([*special, *alphabet])}
    assert len(vocab) == VOCAB_SIZE
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.add_special_tokens(special)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@torch.inference_mode()
def greedy(model: PreTrainedModel, prompt: list[int], num_tokens: int, *, guess: Sequence[int] = ()) -> list[int]:
    """Return transformers' greedy output, without an early end.

    `guess`: the likely output. If each of its tokens is the best after those before it, one pass tells.
    """
    if len(guess) == num_tokens:
        best = model(torch.tensor([[*prompt, *guess[:-1]]])).logits[0, len(prompt) - 1 :].argmax(-1)
        if best.tolist() == list(guess):
            return list(guess)
    model.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False, pad_token_id=0
    )
    token_ids: list[int] = out[0, len(prompt) :].tolist()
    return token_ids


def write_config(folder: Path, **changes: Any) -> None:
    """Change fields of a saved config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
