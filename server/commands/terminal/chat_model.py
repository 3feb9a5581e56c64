"""ChatModel: the model of a conversation; LocalChat runs it in this process."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ....engine.errors import ConfigError
from .session import Session

if TYPE_CHECKING:
    from ....engine.language.text.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, str]]
Show = Callable[[str], None]


class Usage(NamedTuple):
    """Numbers of tokens of an answer. Cached tokens are a part of the prompt's."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int


class ChatModel(Protocol):
    """Model that answers messages."""

    name: str

    def answer(self, messages: Messages, fields: Mapping[str, Any], show: Show) -> Usage | None:
        """Call `show` with each part of the answer. Ctrl-C stops it and raises KeyboardInterrupt.

        `fields`: sampling fields; the model's own values hold for the others. Raises SplitfuseError.
        """


class LocalChat:
    """ChatModel over an engine in this process."""

    def __init__(self, session: Session, *, name: str) -> None:
        """Raise ConfigError if the model has no chat template."""
        tokenizer = session.engine.tokenizer
        if tokenizer is None or not tokenizer.has_chat_template:
            raise ConfigError(f"{name} has no chat template; use `splitfuse generate`")
        self.name = name
        self._session = session
        self._tokenizer: Tokenizer = tokenizer

    def answer(self, messages: Messages, fields: Mapping[str, Any], show: Show) -> Usage | None:
        """Like ChatModel.answer."""
        prompt = self._tokenizer.encode(self._tokenizer.render_chat(list(messages)), add_special_tokens=False)
        self._session.answer(prompt, self._session.params(fields, default_max_tokens=None), show)
        metrics = self._session.metrics
        if metrics is None:
            return None
        return Usage(metrics.num_prompt_tokens, metrics.num_cached_tokens, metrics.num_output_tokens)
