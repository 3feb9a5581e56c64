"""Text to ids and back. Reads tokenizer.json with `tokenizers`; never imports transformers for that (2 s)."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from .config import read_json
from .errors import ConfigError, InvalidRequestError


class Tokenizer:
    """A model's tokenizer, special tokens and chat template. Raises ConfigError if the folder has no readable one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        path = folder / "tokenizer.json"
        if not path.exists():
            raise ConfigError(
                f"{path} is missing; make it with transformers: "
                f"AutoTokenizer.from_pretrained(...).save_pretrained({str(folder)!r})"
            )
        try:
            self._fast = FastTokenizer.from_file(str(path))
        except Exception as exc:  # tokenizers raises plain Exception
            raise ConfigError(f"{path} cannot be read as a tokenizer ({exc}); fetch the file again") from exc
        # A file may carry the padding or truncation of its training; a server must not cut or fill prompts in silence.
        self._fast.no_padding()
        self._fast.no_truncation()
        # Read now, so that a broken file stops the start and not somebody's request.
        path = folder / "tokenizer_config.json"
        self._config = read_json(path) if path.exists() else {}
        self._template = self._compile(self._template_source())

    @property
    def vocab_size(self) -> int:
        """Entries incl. added tokens; the model's logits may be wider."""
        return self._fast.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of the text. Releases the GIL while it works."""
        return self._fast.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of the ids; an id without text gives none."""
        return self._fast.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    @cached_property
    def byte_ids(self) -> frozenset[int]:
        """Ids of the pieces <0x00> to <0xFF>, if the decoder makes bytes of them (SentencePiece's byte fallback)."""
        found = [self._fast.token_to_id(f"<0x{byte:02X}>") for byte in range(256)]
        ids = [token_id for token_id in found if token_id is not None]
        if len(ids) < 256 or self._fast.decode([ids[0x41]], skip_special_tokens=False) != "A":
            return frozenset()
        return frozenset(ids)

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        added = self._fast.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    def has_text(self, token_id: int, *, skip_special_tokens: bool = True) -> bool:
        """Whether decoding sees this id at all: it passes over special tokens and ids that it does not know."""
        if skip_special_tokens and token_id in self._special_ids:
            return False
        return self._fast.id_to_token(token_id) is not None

    def _template_source(self) -> str | None:
        """The template's source: chat_template.jinja, or the entry in tokenizer_config.json."""
        path = self._folder / "chat_template.jinja"
        if path.exists():
            try:
                return path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as exc:
                raise ConfigError(f"{path} cannot be read as text ({exc}); fetch the file again") from exc
        template = self._config.get("chat_template")
        if isinstance(template, list):  # several named ones
            template = next((item["template"] for item in template if item.get("name") == "default"), None)
        return template if isinstance(template, str) else None

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be rendered."""
        return self._template is not None

    def _compile(self, source: str | None) -> Any:
        """By the rules of transformers: sandboxed, immutable, trimmed blocks, loop controls."""
        if source is None:
            return None
        from jinja2 import TemplateSyntaxError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def raise_exception(message: str) -> None:
            raise InvalidRequestError(f"the chat template refuses this conversation: {message}", param="messages")

        def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
            return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = tojson
        environment.globals["raise_exception"] = raise_exception
        environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        try:
            return environment.from_string(source)
        except TemplateSyntaxError as exc:
            raise ConfigError(f"{self._folder}: the chat template does not compile (line {exc.lineno}: {exc})") from exc

    def render_chat(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """The prompt text of a conversation, by the model's chat template. Raises InvalidRequestError.

        Encode the result with add_special_tokens=False: the template writes them itself.
        """
        if not self.has_chat_template:
            raise InvalidRequestError(
                "this model has no chat template; use /v1/completions or /generate", param="messages"
            )
        special = {
            name: _content(self._config.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")
        }
        try:
            text = self._template.render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, tools=None, **special
            )
        except InvalidRequestError:
            raise
        except Exception as exc:  # a template is the model's own program; whatever it raises is about this input
            raise InvalidRequestError(
                f"the chat template cannot render these messages ({type(exc).__name__}: {exc})", param="messages"
            ) from exc
        assert isinstance(text, str)
        return text


def _content(token: object) -> str:
    """The text of a special token, which tokenizer_config.json gives as a string or an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""
