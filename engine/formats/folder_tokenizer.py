"""Tokenizer of a Hugging Face folder: tokenizer.json, tokenizer_config.json, chat_template.jinja.

Folders of older tools have special_tokens_map.json and added_tokens.json beside them, which count like in transformers:
only if tokenizer_config.json has no `added_tokens_decoder`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from ..errors import ConfigError
from .json_file import read_json

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """Tokenizer, its special tokens and chat templates, of a folder or a GGUF file (gguf_tokenizer.py)."""

    fast: FastTokenizer
    special_tokens: Mapping[str, str]  # texts of bos_token, eos_token, …, for chat templates
    chat_templates: Mapping[str, str]  # sources by name; a template without a name is "default"


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
    config = _optional(folder / "tokenizer_config.json")
    is_old = not isinstance(config.get("added_tokens_decoder"), dict)
    merged = {**config, **(_optional(folder / "special_tokens_map.json") if is_old else {})}
    special = {name: text for name in _SPECIAL_TOKENS if (text := _content(merged.get(name)))}
    more = merged.get("extra_special_tokens") or merged.get("additional_special_tokens") or ()
    old = _optional(folder / "added_tokens.json") if is_old else {}
    try:
        extras = [text for token in (more.values() if isinstance(more, dict) else more) if (text := _content(token))]
        by_id = {token_id: text for text, token_id in old.items()}
        added = {key: {"content": text, "special": text in {*special.values(), *extras}} for key, text in by_id.items()}
        added = added if is_old else config["added_tokens_decoder"]
        _add_tokens(fast, added, [*special.values(), *extras])
    except (AttributeError, LookupError, TypeError, ValueError) as exc:
        raise ConfigError(f"{folder}: its added tokens cannot be read ({exc}); fetch the folder again") from exc
    return TokenizerParts(fast, special, _templates(folder, config))


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _add_tokens(fast: FastTokenizer, added: Mapping[Any, Any], special: Sequence[str]) -> None:
    """Add the tokens that tokenizer.json does not list as added, in the order of their ids. Raises TypeError."""
    known = {token.content for token in fast.get_added_tokens_decoder().values()}
    tokens = [
        AddedToken(token["content"], **{key: token[key] for key in token.keys() - {"content", "__type"}})
        for _, token in sorted(added.items(), key=lambda item: int(item[0]))
    ]
    tokens += [AddedToken(text, special=True, normalized=False) for text in special]
    for token in tokens:
        if token.content not in known:
            (fast.add_special_tokens if token.special or token.content in special else fast.add_tokens)([token])
            known.add(token.content)


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
