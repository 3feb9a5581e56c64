"""Types of a GGUF's tokens, repaired where a token's text says more, and the tokens that end an answer."""

import re
from collections.abc import Sequence

from ...errors import ConfigError
from .file import GgufFile, Strings

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
# Tokens that end an answer: instruct models have several, but a file names only one.
_ENDS = frozenset(
    ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|endoftext|>", "[EOT]", "[EOS]")
    + ("<|end_of_text|>", "<|tool_response>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<EOT>", "_<EOT>")
    + ("<end_of_utterance>", "<｜end▁of▁sentence｜>", "[e~[")
)
# Pairs of ends beside which <|end|> ends a message, not an answer: gpt-oss's and Solar Open's.
_MESSAGES = ({"<|return|>", "<|call|>"}, {"<|calls|>", "<|flush|>"})
# Texts of control tokens, whatever type a file gives them: the rule of llama.cpp's converter, and Gemma's turns.
_LOOKS_SPECIAL = re.compile(r"<\|[^|>\s]+\|>|<｜[^｜\s]+｜>|<(?:start|end)_of_turn>|<unused\d+>|<pad>|<mask>|\[@BOS@\]")


def token_types(tokens: Sequence[str], types: Sequence[int] | None) -> list[int]:
    """Return the type of each token. A normal token that looks special is a control token. Raises ConfigError."""
    looks = _LOOKS_SPECIAL.fullmatch
    return [
        CONTROL if kind == NORMAL and text[:1] in "<[" and looks(text) else int(kind)
        for text, kind in zip(tokens, _stated(types, len(tokens)), strict=True)
    ]


def _stated(types: Sequence[int] | None, num_tokens: int) -> Sequence[int]:
    if types is None:
        return [NORMAL] * num_tokens
    if len(types) != num_tokens:
        raise ConfigError(f"tokenizer.ggml.token_type has {len(types)} entries for {num_tokens} tokens")
    return types


def end_ids(file: GgufFile) -> list[int]:
    """Return the ids of the tokens that end an answer: the file names some, others are known by their texts."""
    tokens, types = (file.metadata.get(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type"))
    if not isinstance(tokens, Strings):
        return []
    named = [file.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    named_ids = {token_id for token_id in named if isinstance(token_id, int)}
    found = {token_id: text for token_id, text in enumerate(tokens) if text in _ENDS}
    stated = _stated(types, len(tokens))
    kinds = token_types([*found.values()], [stated[token_id] for token_id in found])
    ends = {text: token_id for (token_id, text), kind in zip(found.items(), kinds, strict=True) if kind == CONTROL}
    if any(ends.keys() >= pair for pair in _MESSAGES):
        named_ids = named_ids - {ends.pop("<|end|>", -1)}
    return sorted(named_ids | set(ends.values()))
