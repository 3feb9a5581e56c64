"""TextStream: one output's ids become text as they come: never half a character, never past a stop string."""

from collections.abc import Sequence

from .tokenizer import Tokenizer

# How far back to look in the prompt for a token at which a character begins: bytes of one, and a few special tokens.
_MAX_PROMPT_CONTEXT = 8
# No character takes so many tokens: what is pending is broken bytes, and decoding all of them each time would add up.
_MANY_PENDING = 16


class TextStream:
    """Joined, what `push` returns is the decoding of all ids, cut at the stop string if one was met."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        # A decoder may treat the first token of a text specially (a stripped space), so some whole text goes before. A
        # prompt that ends within a character leaves its last ids pending: the output completes it.
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []  # ids whose text is not out yet
        tail = list(prompt_token_ids[-_MAX_PROMPT_CONTEXT:])
        for num_pending in range(min(4, len(tail))):
            context = tail[: len(tail) - num_pending]
            text = self._decode(context)
            if text and not text.endswith("\ufffd"):
                self._context, self._context_text, self._pending = context, text, tail[len(context) :]
                break
        self._stop = stop
        self._include_stop = include_stop
        self._held = ""  # decoded, but may be the beginning of a stop string
        self.stopped_by: str | None = None

    def push(self, token_id: int | None, *, last: bool, may_stop: bool = True) -> str:
        """Text that is certain after this token (None: no further token). `last` lets go of everything held back.

        If a stop string is met (and `may_stop`), `stopped_by` is set and nothing more will come.
        """
        if token_id is not None:
            self._pending.append(token_id)
        text = self._held + self._take(last=last)
        self._held = ""
        if not self._stop or not may_stop:
            return text
        return self._until_stop(text, last=last)

    def _take(self, *, last: bool) -> str:
        """Decode the pending ids, unless they end within a character."""
        if not self._pending:
            return ""
        whole = self._decode(self._context + self._pending)
        if whole.endswith("\ufffd") and not last:
            return self._take_settled(whole) if len(self._pending) >= _MANY_PENDING else ""
        text = whole[len(self._context_text) :]
        if text:  # the next context begins here, at the beginning of a character; ids without text leave it as it is
            self._context, self._context_text = self._pending, self._decode(self._pending)
        self._pending = []
        return text

    def _take_settled(self, whole: str) -> str:
        """The part of a long run of broken bytes that no later one can mend: they are at most three from the end."""
        for keep in range(3, 8):
            head = self._decode(self._context + self._pending[:-keep])
            if head + self._decode(self._pending[-keep:]) == whole:
                text = head[len(self._context_text) :]
                self._context, self._pending = self._pending[:-keep][-_MAX_PROMPT_CONTEXT:], self._pending[-keep:]
                self._context_text = self._decode(self._context)
                return text
        return ""

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special) if token_ids else ""

    def _until_stop(self, text: str, *, last: bool) -> str:
        found = [(position, stop) for stop in self._stop if (position := text.find(stop)) >= 0]
        if found:
            position, self.stopped_by = min(found)
            return text[: position + len(self.stopped_by) * self._include_stop]
        if last:
            return text
        keep = max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that is a proper beginning of the stop string."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
