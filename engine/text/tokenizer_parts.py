"""TokenizerParts: what a model's files tell of its tokenizer, whichever files these are."""

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer as FastTokenizer


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """Read from a folder (folder_tokenizer.py) or a GGUF file (gguf_tokenizer.py)."""

    fast: FastTokenizer
    special_tokens: Mapping[str, str]  # texts of bos_token, eos_token, …, for chat templates
    chat_templates: Mapping[str, str]  # by name; one that has no name is "default"
