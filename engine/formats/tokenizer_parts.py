"""TokenizerParts: a tokenizer, its special tokens and chat templates, read from a model's files of any kind."""

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer as FastTokenizer


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """Parts read from a folder (folder_tokenizer.py) or a GGUF file (gguf_tokenizer.py)."""

    fast: FastTokenizer
    special_tokens: Mapping[str, str]  # texts of bos_token, eos_token, …, for chat templates
    chat_templates: Mapping[str, str]  # sources by name; a template without a name is "default"
