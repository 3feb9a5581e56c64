"""TextStream: one output's ids become text as they come: never half a character, never past a stop string."""

from collections.abc import Sequence

from .stop_strings import StopStringMatcher
from .tokenizer import Tokenizer

# Tokens of the prompt among which one must begin a character: bytes of one, and a few special tokens.
_MAX_PROMPT_CONTEXT = 8
# No character takes so many tokens: the pending ones are broken bytes, and decoding all of them each time would add up.
_MANY_PENDING = 16
# Byte fallback decodes a run of byte tokens as a whole: one wrong byte turns all of it into U+FFFD, also characters
# that were complete. So a run is held until it ends, or until so many bytes are only whole characters.
_LONG_RUN = 128
_BROKEN = "\ufffd"


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
        self._decoder = IncrementalDecoder(tokenizer, prompt_token_ids, skip_special_tokens=skip_special_tokens)
        self._stop_strings = StopStringMatcher(stop, include=include_stop)

    @property
    def stopped_by(self) -> str | None:
        """The stop string that was met; nothing more will come then."""
        return self._stop_strings.matched

    def push(self, token_id: int | None, *, last: bool, may_stop: bool = True) -> str:
        """Text that is certain after this token (None: no further token). With `last` nothing is held back.

        Stop strings count only if `may_stop`.
        """
        return self._stop_strings.push(self._decoder.push(token_id, last=last), last=last, may_stop=may_stop)


class IncrementalDecoder:
    """Joined, what `push` returns is the decoding of all ids."""

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        self._byte_ids = tokenizer.byte_ids
        self._run = 0  # byte tokens in a row at the end
        self._pending: list[int] = []  # ids whose text is not out yet
        # A decoder may treat the first token of a text specially (a stripped space), so some whole text goes before.
        self._context = self._tail(prompt_token_ids)
        self._known_text = self._decode(self._context)
        # The same if the prompt ended within a character that the output completes.
        self._whole_text = self._without_broken_end()

    def push(self, token_id: int | None, *, last: bool) -> str:
        """Decode the pending ids and this one, if any, unless they end within a character that may still come."""
        if token_id is not None:
            self._pending.append(token_id)
            if self._byte_ids:
                self._count_bytes(token_id)
        if not self._pending or (self._is_held and not last):
            return ""
        whole = self._decode(self._context + self._pending)
        if whole.endswith(_BROKEN) and not last:
            return self._take_certain(whole) if len(self._pending) >= _MANY_PENDING and not self._run else ""
        text = self._new_in(whole)
        if text:  # the next context begins here, at the beginning of a character; ids without text leave it as it is
            self._continue_from(self._pending)
        self._pending = []
        return text

    def _new_in(self, whole: str) -> str:
        """What a decoding of context and pending ids adds to what is known."""
        for known in (self._known_text, self._whole_text):
            if whole.startswith(known):
                return whole[len(known) :]
        return self._decode(self._pending)  # they break a run of bytes whose text is out

    def _continue_from(self, context: list[int]) -> None:
        self._context = context
        self._known_text = self._whole_text = self._decode(context)

    def _take_certain(self, whole: str) -> str:
        """The part of a long run of broken bytes that no later one completes: all but the last three."""
        for keep in range(3, 8):
            head = self._decode(self._context + self._pending[:-keep])
            if head + self._decode(self._pending[-keep:]) == whole:
                text = self._new_in(head)
                self._continue_from(self._pending[:-keep][-_MAX_PROMPT_CONTEXT:])
                self._pending = self._pending[-keep:]
                return text
        return ""

    def _count_bytes(self, token_id: int) -> None:
        if token_id in self._byte_ids:
            self._run += 1
        elif self._run and self._tokenizer.has_text(token_id, skip_special_tokens=self._skip_special):
            self._run = 0

    @property
    def _is_held(self) -> bool:
        """Whether a run of bytes goes on; a long one is decoded four times in a row, once between two characters."""
        return self._run > 0 and (self._run < _LONG_RUN or self._run % _LONG_RUN > 3)

    def _tail(self, token_ids: Sequence[int]) -> list[int]:
        """The last few ids of the prompt, from the beginning of a run of bytes if they end in one."""
        start = max(0, len(token_ids) - _MAX_PROMPT_CONTEXT)
        earliest = max(0, start - _LONG_RUN)
        while start > earliest and token_ids[start] in self._byte_ids:
            start -= 1
        tail = list(token_ids[start:])
        if start and tail[0] in self._byte_ids:  # the run is longer still: begin with a character
            whole = (tail[skip:] for skip in range(4) if not self._decode(tail[skip:]).startswith(_BROKEN))
            tail = next(whole, tail)
        return tail

    def _without_broken_end(self) -> str:
        """The context's text up to where its last character would begin, if that is not complete."""
        if self._byte_ids and self._known_text.endswith(_BROKEN):
            for num_bytes in range(1, 4):
                text = self._decode(self._context[:-num_bytes])
                if not text.endswith(_BROKEN):
                    return text
        return self._known_text.rstrip(_BROKEN)

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special) if token_ids else ""
