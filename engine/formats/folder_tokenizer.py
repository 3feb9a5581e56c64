"""Tokenizer of a Hugging Face folder: tokenizer.json, tokenizer_config.json, chat_template.jinja."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from ..errors import ConfigError
from .json_file import read_json
from .tokenizer_parts import TokenizerParts

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_folder_tokenizer(folder: Path) -> TokenizerParts:
    """Read the tokenizer of a folder. Raises ConfigError if there is no readable one."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise ConfigError(
            f"{path} is missing; make it with transformers: "
            f"AutoTokenizer.from_pretrained(...).save_pretrained({str(folder)!r})"
        )
    try:
        fast = FastTokenizer.from_file(str(path))
    except Exception as exc:  # tokenizers raises plain Exception
        raise ConfigError(f"{path} cannot be read as a tokenizer ({exc}); fetch the file again") from exc
    path = folder / "tokenizer_config.json"
    config = read_json(path) if path.exists() else {}
    special = {name: text for name in _SPECIAL_TOKENS if (text := _content(config.get(name)))}
    return TokenizerParts(fast, special, _templates(folder, config))


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    path = folder / "chat_template.jinja"
    if path.exists():
        others = (folder / "additional_chat_templates").glob("*.jinja")
        return {"default": _text_of(path), **{other.stem: _text_of(other) for other in others}}
    templates = config.get("chat_template")
    if isinstance(templates, str):
        return {"default": templates}
    items = [item for item in templates or () if isinstance(item, dict)] if isinstance(templates, list) else []
    named = {item.get("name"): item.get("template") for item in items}
    return {name: text for name, text in named.items() if isinstance(name, str) and isinstance(text, str)}


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} cannot be read as text ({exc}); fetch the file again") from exc


def _content(token: object) -> str:
    """Return the text of a special token, which is a string or an object in tokenizer_config.json."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""
