"""ThinkingLimit: where the reasoning of a request's outputs begins and ends, and the tokens that close it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...language.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ...language.chat.reasoning_parser import ReasoningFormat

_TAIL = 64  # last tokens of a prompt, which may open reasoning


@dataclass(frozen=True)
class ThinkingLimit:
    """Limit of one request."""

    num_tokens: int
    form: "ReasoningFormat"
    begins_open: bool  # an output begins within its reasoning
    message_ids: tuple[int, ...]  # forced before the closing
    vocab_size: int
    tokenizer: Tokenizer = field(repr=False)

    @classmethod
    def of(
        cls, form: "ReasoningFormat", prompt: Sequence[int], *, message: str, tokenizer: Tokenizer, **fields: Any
    ) -> "ThinkingLimit":
        """Make the limit behind this prompt."""
        tail = tokenizer.decode(prompt[-_TAIL:], skip_special_tokens=False)
        ids = tuple(tokenizer.encode(message, add_special_tokens=False)) if message else ()
        return cls(form=form, begins_open=form.ends_open(tail), message_ids=ids, tokenizer=tokenizer, **fields)

    @property
    def is_repeated(self) -> bool:
        """True if an answer may think several times: then its content has an opening, too."""
        return bool(self.form.before_content)

    def ids(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a tag."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, with special ones."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=False)

    def closing_after(self, thoughts: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens that close reasoning; only the rest if the model has begun its closing."""
        closing = self.ids(self.form.closings[0])
        for length in range(len(closing) - 1, 0, -1):
            if tuple(thoughts[-length:]) == closing[:length]:
                return closing[length:]
        return self.message_ids + closing

    def finds(self, tags: Sequence[str], token_ids: Sequence[int]) -> bool:
        """True if one of the tags ends within the last of these tokens."""
        if not token_ids or not set(self.text(token_ids[-1:])) & {tag[-1] for tag in tags}:
            return False
        text = self.text(token_ids[-max(map(len, tags)) :])
        return any(tag in text for tag in tags)

    def opens(self, token_ids: Sequence[int]) -> bool | None:
        """Return true if an output opens reasoning with the last of its tokens, None if it still may."""
        if self.is_repeated:
            return self.finds(self.form.openings, token_ids) or None
        text = self.text(token_ids).lstrip()
        if text.startswith(self.form.openings):
            return True
        return None if any(tag.startswith(text) for tag in self.form.openings) else False

    def content_after(self, token_ids: Sequence[int]) -> tuple[int | None, tuple[int, ...]]:
        """Return the token that would begin reasoning once more after these, and the tokens of content in its place.

        None if reasoning does not begin here. The tag's last token is left to the model, which may add a type.
        """
        if not self.is_repeated:
            return None, ()
        opening, content = self.ids(self.form.openings[0]), self.ids(self.form.before_content)
        at = next((i for i, (a, b) in enumerate(zip(opening, content, strict=False)) if a != b), 0)
        is_here = at > 0 and opening[:at] == tuple(token_ids[-at:])
        return (opening[at], content[at:-1]) if is_here else (None, ())
