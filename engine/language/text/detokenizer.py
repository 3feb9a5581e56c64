"""TextStream: decodes one output's ids as they arrive: never half a character, never past a stop string."""

from codecs import getincrementaldecoder
from collections.abc import Sequence

from .stop_strings import StopStringMatcher
from .tokenizer import Tokenizer

# Among so many last prompt tokens one begins a character: four bytes at most, and a few special tokens.
_MAX_PROMPT_CONTEXT = 8
# No character takes this many tokens: the pending ones are broken bytes, and decoding all of them each time would add
# up.
_MANY_PENDING = 16
# Byte fallback decodes a run of byte tokens as a whole: one wrong byte turns the run into U+FFFD, complete characters
# included. So a run is held until it ends, or until this many bytes are whole characters only.
_LONG_RUN = 128
_BROKEN = "\ufffd"
_utf8 = getincrementaldecoder("utf-8")


class TextStream:
    """Stream of one output's text: joined, the results of `push` are all ids decoded, cut at a met stop string."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        kind = ByteDecoder if tokenizer.is_byte_level else IncrementalDecoder
        self._decoder = kind(tokenizer, prompt_token_ids, skip_special_tokens=skip_special_tokens)
        self._stop_strings = StopStringMatcher(stop, include=include_stop)

    @property
    def stopped_by(self) -> str | None:
        """Stop string that was met; no text follows it."""
        return self._stop_strings.matched

    def push(self, token_id: int | None, *, last: bool, may_stop: bool = True) -> str:
        """Return the text that is certain after this token (None: no further token). `last`: hold nothing back.

        Stop strings count only if `may_stop`.
        """
        return self._stop_strings.push(self._decoder.push(token_id, last=last), last=last, may_stop=may_stop)


class ByteDecoder:
    """Decoder of one output's ids for byte-level tokenizers, whose text is the bytes of all tokens, joined.

    A look-up a token: decoding two short lists instead took a tenth of the server's work for a token.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool) -> None:
        self._token_bytes = tokenizer.visible_bytes if skip_special_tokens else tokenizer.all_bytes
        self._decoder = _utf8("replace")
        self._decoder.decode(b"".join(map(self._token_bytes, prompt_token_ids[-_MAX_PROMPT_CONTEXT:])))
        # True until the output completes or breaks a character that the prompt began.
        self._is_within_character = bool(self._decoder.getstate()[0])

    def push(self, token_id: int | None, *, last: bool) -> str:
        """Return the text that is complete with this token, if any."""
        text = self._decoder.decode(b"" if token_id is None else self._token_bytes(token_id), last)
        if text and self._is_within_character:
            self._is_within_character = False
            return text.removeprefix(_BROKEN)  # the prompt's own broken end
        return text


class IncrementalDecoder:
    """Decoder of one output's ids: joined, the results of `push` are all ids decoded."""

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        self._byte_ids = tokenizer.byte_ids
        self._run = 0  # number of byte tokens in a row at the end
        self._pending: list[int] = []  # ids whose text has not been returned yet
        # A decoder may treat a text's first token specially (strip its space), so the prompt's last tokens go before.
        self._context = self._tail(prompt_token_ids)
        self._known_text = self._decode(self._context)
        # Known text, if the prompt ended within a character that the output completes.
        self._whole_text = self._without_broken_end()

    def push(self, token_id: int | None, *, last: bool) -> str:
        """Decode the pending ids and this one, if any, unless they end within a character that may be completed."""
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
        if text:  # the next context begins here, where a character begins; ids without text do not move it
            self._continue_from(self._pending)
        self._pending = []
        return text

    def _new_in(self, whole: str) -> str:
        """Return the text that `whole`, the decoded context and pending ids, adds to the known text."""
        for known in (self._known_text, self._whole_text):
            if whole.startswith(known):
                return whole[len(known) :]
        return self._decode(self._pending)  # they break a run of bytes whose text was returned

    def _continue_from(self, context: list[int]) -> None:
        self._context = context
        self._known_text = self._whole_text = self._decode(context)

    def _take_certain(self, whole: str) -> str:
        """Take the part of a long run of broken bytes that no later byte completes: all but the last three."""
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
        """True while a run of bytes is held. A long run is decoded at four bytes in a row, one of which is between two
        characters.
        """
        return self._run > 0 and (self._run < _LONG_RUN or self._run % _LONG_RUN > 3)

    def _tail(self, token_ids: Sequence[int]) -> list[int]:
        """Return the last few ids of the prompt; if they begin within a run of bytes, from the run's beginning."""
        start = max(0, len(token_ids) - _MAX_PROMPT_CONTEXT)
        earliest = max(0, start - _LONG_RUN)
        while start > earliest and token_ids[start] in self._byte_ids:
            start -= 1
        tail = list(token_ids[start:])
        if start and tail[0] in self._byte_ids:  # the run is even longer: begin with a character
            whole = (tail[skip:] for skip in range(4) if not self._decode(tail[skip:]).startswith(_BROKEN))
            tail = next(whole, tail)
        return tail

    def _without_broken_end(self) -> str:
        """Return the context's text without its last character, if that is incomplete."""
        if self._byte_ids and self._known_text.endswith(_BROKEN):
            for num_bytes in range(1, 4):
                text = self._decode(self._context[:-num_bytes])
                if not text.endswith(_BROKEN):
                    return text
        return self._known_text.rstrip(_BROKEN)

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special) if token_ids else ""
