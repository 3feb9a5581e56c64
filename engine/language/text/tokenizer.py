"""Tokenizer: text to ids and back. Uses `tokenizers` and never imports transformers, which takes 2 s.

The bytes of one token alone need not be whole characters.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from ...checks import check_text
from ...errors import ConfigError, InvalidRequestError
from ...formats.folder_tokenizer import TokenizerParts, read_folder_tokenizer
from .length_bound import LengthBound

# A text is a batch of its own here, so more threads do not help, and forking beside such threads gives a warning.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_MANY_IDS = 1024
_ESCAPE = "\ufdd0"  # no character; where it stands, a text is tokenized in two pieces
_LONG_TEMPLATE_CHARS = 32 * 1024  # known models' templates have 20 KB at most, and compile faster than a process starts


class Tokenizer:
    """Tokenizer, special tokens and chat template of a model. Raises ConfigError if there is no readable tokenizer.

    `chat_template`: a file or a template that replaces the model's own. `escapes_special_tokens`: in conversations,
    the texts of users and tools hold no special tokens, whatever they spell.
    """

    def __init__(self, model: Path, *, chat_template: str | None = None, escapes_special_tokens: bool = False) -> None:
        """`model`: a folder or a GGUF file. All files are read now, so a broken file stops the start."""
        self._model = model
        self._parts = _read_parts(model)
        self._fast = self._parts.fast
        self.special_tokens = self._parts.special_tokens  # texts by name, such as eos_token, as the model's files have
        # A file may carry its training's padding or truncation; a server must not cut or pad prompts silently.
        self._fast.no_padding()
        self._fast.no_truncation()
        self.length_bound = LengthBound.of(self._fast)
        self._chat_template = self._read_template(chat_template)
        added = self._fast.get_added_tokens_decoder().values() if escapes_special_tokens else ()
        spellings = sorted((re.escape(token.content) for token in added if len(token.content) > 1), key=len)
        self._escaped_texts = re.compile("|".join(reversed(spellings))) if spellings else None

    @property
    def vocab_size(self) -> int:
        """Number of entries, added tokens included; the model's logits may be wider."""
        return self._fast.get_vocab_size(with_added_tokens=True)

    def to_json(self) -> str:
        """Return the whole tokenizer as the text of a tokenizer.json."""
        return self._fast.to_str()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the text's ids. Raises InvalidRequestError."""
        pieces = text.split(_ESCAPE) if self._escaped_texts is not None else [text]
        ids: list[int] = self.encode_batch(pieces[:1], add_special_tokens=add_special_tokens)[0].ids
        for piece in self.encode_batch(pieces[1:], add_special_tokens=False):
            ids += piece.ids
        return ids

    def escaped(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return the conversation with special tokens of users and tools broken up for `encode`, if it is asked for."""
        pattern = self._escaped_texts
        if pattern is None:
            return messages
        return [
            {**message, "content": pattern.sub(lambda found: f"{found[0][0]}{_ESCAPE}{found[0][1:]}", text)}
            if message["role"] not in ("system", "assistant") and isinstance(text := message.get("content"), str)
            else message
            for message in messages
        ]

    def encode_batch(self, texts: Sequence[str | tuple[str, str]], *, add_special_tokens: bool = True) -> list[Any]:
        """Return the `ids` and `type_ids` of texts and pairs. Releases the GIL, unlike `encode` of `tokenizers`.

        Raises InvalidRequestError for a text that the tokenizer's vocabulary or patterns cannot split.
        """
        try:
            return self._fast.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        except BaseException as exc:  # tokenizers raises plain Exception, and a panic of Rust is none
            if not isinstance(exc, Exception) and type(exc).__name__ != "PanicException":
                raise
            raise InvalidRequestError(f"the model's tokenizer has no tokens for this text ({exc})") from exc

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of the ids; an id without text adds none. Releases the GIL for more than _MANY_IDS ids."""
        if len(token_ids) > _MANY_IDS:
            return self._fast.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)[0]
        return self._fast.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    @cached_property
    def is_byte_level(self) -> bool:
        """True if a text is the bytes of its tokens, joined."""
        return self._fast.decoder is not None and json.loads(self._fast.decoder.__getstate__())["type"] == "ByteLevel"

    @cached_property
    def all_bytes(self) -> Callable[[int], bytes]:
        """Function from a token id to its bytes in a byte-level tokenizer; none outside of the vocabulary."""
        return cache(lambda token_id: _spelled_bytes(piece := self.piece(token_id), otherwise=piece))

    @cached_property
    def visible_bytes(self) -> Callable[[int], bytes]:
        """Like `all_bytes`, but special tokens have no bytes."""
        return cache(lambda token_id: b"" if token_id in self._special_ids else self.all_bytes(token_id))

    @cached_property
    def byte_ids(self) -> frozenset[int]:
        """Ids of the tokens <0x00> to <0xFF>, if the decoder turns them into bytes (SentencePiece's byte fallback)."""
        found = [self._fast.token_to_id(f"<0x{byte:02X}>") for byte in range(256)]
        ids = [token_id for token_id in found if token_id is not None]
        if len(ids) < 256 or self._fast.decode([ids[0x41]], skip_special_tokens=False) != "A":
            return frozenset()
        return frozenset(ids)

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        added = self._fast.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    def piece(self, token_id: int) -> str:
        """Return a token as the vocabulary spells it, "" outside of it."""
        return self._fast.id_to_token(token_id) or ""

    def has_text(self, token_id: int, *, skip_special_tokens: bool = True) -> bool:
        """True if decoding uses this id; decoding skips special tokens and unknown ids."""
        if skip_special_tokens and token_id in self._special_ids:
            return False
        return self._fast.id_to_token(token_id) is not None

    def special_ids(self, texts: Sequence[str]) -> dict[str, int]:
        """Return the ids of the texts that a grammar names by their tokens, because no other tokens spell them.

        These are special tokens, and added tokens in angle brackets, which llguidance takes for special ones.
        """
        added = self._fast.get_added_tokens_decoder()
        found = {text: self._fast.token_to_id(text) for text in texts}
        named = {token_id for token_id, token in added.items() if token.special or re.fullmatch("<.*>", token.content)}
        return {text: token_id for text, token_id in found.items() if token_id in named}

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Id of the tokenizer's own end token, if it has one."""
        token_id = self._fast.token_to_id(self._parts.special_tokens.get("eos_token", ""))
        return () if token_id is None else (token_id,)

    @property
    def has_chat_template(self) -> bool:
        """True if conversations can be rendered."""
        return self._chat_template is not None

    @property
    def chat_template(self) -> Any:
        """ChatTemplate of the chat extra, which renders conversations.

        Encode the rendered texts with add_special_tokens=False, because they contain the special tokens already.

        Raises InvalidRequestError if there is no template.
        """
        if self._chat_template is None:
            reason = "this model has no chat template; use /v1/completions or /generate, or start with --chat-template"
            raise InvalidRequestError(reason, param="messages")
        return self._chat_template

    def render_chat(self, messages: Sequence[Mapping[str, Any]], *, template: str | None = None, **options: Any) -> str:
        """Return the prompt text of a conversation, rendered with this template's source or the model's template.

        Takes ChatTemplate.render's options. Raises InvalidRequestError; ConfigError about `template`.
        """
        chat_template = None if template is None else self._new_template(_read_template(template))
        text: str = (chat_template or self.chat_template).render(self.escaped(messages), **options)
        check_text(text, param="messages")
        return text

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str | list[int]:
        """Like render_chat, but with the signature of transformers' tokenizers: returns the text or its ids."""
        options = {"tools": tools, "add_generation_prompt": add_generation_prompt, "variables": variables}
        text = self.render_chat(conversation, template=chat_template, repairs=False, **options)
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def _read_template(self, setting: str | None) -> Any:
        """Read --chat-template, or else the model's own template; None if there is none."""
        sources = self._parts.chat_templates
        if setting is not None:
            sources = {"default": _read_template(setting)}
        if "default" not in sources:
            return None
        try:
            return self._new_template(sources["default"], tool_source=sources.get("tool_use"))
        except ConfigError as exc:
            raise ConfigError(f"{self._model if setting is None else '--chat-template'}: {exc}") from exc

    def _new_template(self, source: str, *, tool_source: str | None = None) -> Any:
        from ..chat.template import ChatTemplate

        recipe: dict[str, Any] = {
            "source": source,
            "special_tokens": dict(self._parts.special_tokens),
            "tool_source": tool_source,
        }
        if len(source) + len(tool_source or "") > _LONG_TEMPLATE_CHARS:
            from ..chat.renderer import check_compiles  # here: few templates are long

            check_compiles(recipe)
        return ChatTemplate(**recipe)


def _read_template(setting: str) -> str:
    from ..chat.template import read_template  # here: jinja2 takes 20 ms

    return read_template(setting)


def _read_parts(model: Path) -> TokenizerParts:
    if model.is_file():
        from ...formats.gguf.gguf_tokenizer import read_gguf_tokenizer  # here: most models are folders

        return read_gguf_tokenizer(model)
    return read_folder_tokenizer(model)


_BROKEN = "\N{REPLACEMENT CHARACTER}"


def token_bytes(tokenizer: Tokenizer, token_id: int, text: str) -> bytes:
    """Return the bytes of a token whose text is `text`. The bytes of an answer's tokens join to the answer."""
    if _BROKEN not in text:
        return text.encode("utf-8", "replace")
    piece = tokenizer.piece(token_id)
    if token_id in tokenizer.byte_ids:
        return bytes.fromhex(piece[3:5])  # <0xE2>
    return _spelled_bytes(piece, otherwise=text)


def _spelled_bytes(piece: str, *, otherwise: str) -> bytes:
    """Return the bytes that a byte-level vocabulary spells so; those of `otherwise` if it spells none so."""
    alphabet = _alphabet()
    return bytes(alphabet[char] for char in piece) if alphabet.keys() >= set(piece) else otherwise.encode()


@cache
def _alphabet() -> dict[str, int]:
    """Map the characters of byte-level vocabularies to bytes by GPT-2's table."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + number): byte for number, byte in enumerate(others)}
