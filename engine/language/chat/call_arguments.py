"""Readers of the arguments of one call while their text streams in: JSON, or keys and values that become JSON text."""

import re
from collections.abc import Mapping
from typing import Any

from ..text.stop_strings import overlap
from .call_syntax import NAME, CallSyntax, Pattern, skip_space
from .json_call import decoded
from .loose_values import QUOTES, ValueScanner, as_json, json_scanner, loose_json, typed_json, types_of

_WORD = re.compile(r"[\w. -]*")
_STRING = frozenset({"string"})


class JsonArguments:
    """Reader of an object in JSON, or of a string of such JSON. Text that never gets certain is no call's."""

    def __init__(self, *, is_text: bool) -> None:
        self.is_over = False
        self.is_certain = True
        self._brace = '"' if is_text else "{"
        self._string = ""
        self._value = json_scanner()

    def begins(self, text: str, *, is_end: bool) -> bool | None:
        """True if arguments begin here; None if more text decides."""
        return text.startswith(self._brace) if text or is_end else None

    def read(self, text: str, *, is_end: bool) -> tuple[str, str]:
        """Return the JSON that is certain now, and the unread text."""
        taken = self._value.take(text)
        self.is_over = self._value.is_over
        rest = text[len(taken) :]
        if self._brace == "{":
            return taken, rest
        self._string += taken
        return (decoded(self._string) or "{}") if self.is_over else "", rest


class Values:
    """Reader of keys and values. The end of a value in tags counts only where the call goes on or ends behind it.

    `is_strict`: the first value must be a literal.
    """

    def __init__(self, syntax: CallSyntax, schema: Mapping[str, Any], *, is_strict: bool) -> None:
        self.is_over = False
        self.is_certain = not is_strict
        self._syntax = syntax
        self._schema = schema
        self._properties: Mapping[str, Any] = schema.get("properties") or {}
        self._keys: list[str] = []
        self._is_inside = False  # within a value
        self._types: frozenset[str] = frozenset()  # that the value may have
        self._held = ""  # text of a value that is no string
        self._is_first_text = False  # True until the value has text
        self._scanner: ValueScanner | None = None  # finds the end of a value with quotes
        self._key_open, self._value_close = Pattern(syntax.key_open), Pattern(syntax.value_close)
        self._openings = [Pattern(text) for text in (syntax.string_open, syntax.value_open) if text]
        self._ends = [word for word in Pattern(syntax.closing + " " + syntax.after).words if len(word) > 1]
        self._next = Pattern(syntax.opening).first or Pattern(syntax.name_open).first
        self._has_quotes = syntax.arguments == "keywords"
        key, call = f"{syntax.key_open}{NAME}{syntax.value_open}", f"{syntax.opening}{syntax.name_open}{NAME}"
        ends = (syntax.separator + key, f"{syntax.closing}{syntax.between}{call}", syntax.closing + syntax.after)
        self._behind = [Pattern(syntax.quote + end) for end in ends]  # a value that stands as it is

    def begins(self, text: str, *, is_end: bool) -> bool | None:
        """True if arguments begin here; None if more text decides."""
        if self._has_quotes and text and text[0] == self._syntax.closing[0]:
            return True
        if self._key_open.words:
            return self._starts(text, 0, [self._key_open.first, *self._ends], is_end=is_end)
        found, _, _ = self._key(text, 0, is_end=is_end)
        return None if found is None else found >= 0

    def read(self, text: str, *, is_end: bool) -> tuple[str, str]:
        """Return the JSON that is certain now, and the unread text."""
        json_text = ""
        while not self.is_over:
            step = self._outside if not self._is_inside else self._quoted if self._has_quotes else self._bare
            if self._is_inside and self._syntax.unescaped and not self._held:
                step = self._unescaped
            piece, rest = step(text, is_end=is_end)
            json_text += piece
            if rest == text:
                break
            text = rest
        return json_text, text

    # These methods return JSON and the unread text, which is the same text if more of it decides.

    def _outside(self, text: str, *, is_end: bool) -> tuple[str, str]:
        position = skip_space(text, 0)
        separator = self._syntax.separator.strip()
        if self._keys and separator and text.startswith(separator, position):
            position = skip_space(text, position + len(separator))
        closing = self._syntax.closing.strip()
        if self._has_quotes and text.startswith(closing[0], position):
            return self._over(text[position + 1 :])
        has_ended = self._starts(text, position, self._ends, is_end=is_end)
        if has_ended and not self._has_quotes:
            return self._over(text[position:])
        end, key, is_string = self._key(text, position, is_end=is_end)
        if end is None or (has_ended is None and not is_end):
            return "", text
        if end < 0:
            return ("", text) if is_end else self._over(text[position:])
        opening = ", " if self._keys else "{"
        self._keys.append(key)
        self._is_inside = self._is_first_text = True
        self._held = ""
        self._types = _STRING if is_string else types_of(self._properties.get(key), self._schema)
        if self._syntax.string_open and self._syntax.string_open != self._syntax.value_open and not is_string:
            self._types = frozenset()
        words = (self._syntax.value_close, separator, closing)
        stops = "".join(word.strip()[:1] for word in words)
        quotes = QUOTES if len(self._syntax.quote) == 1 else (self._syntax.quote,)
        self._scanner = ValueScanner(stops, quotes) if self._has_quotes else None
        quote = '"' if self._types == _STRING and not self._has_quotes else ""
        return f"{opening}{as_json(key)}: {quote}", text[end:]

    def _over(self, rest: str) -> tuple[str, str]:
        self.is_over = self.is_certain = True
        return "}" if self._keys else "{}", rest

    def _key(self, text: str, position: int, *, is_end: bool) -> tuple[int | None, str, bool]:
        """Return where the value begins after its key, -1 if there is no key, None if more text decides.

        True if the tag says that the value is a string.
        """
        start, _ = self._key_open.match(text, position, is_end=is_end)
        if start is None or start < 0:
            return start, "", False
        found = [at for pattern in self._openings if (at := text.find(pattern.first, start)) >= 0]
        begun = max(overlap(text, pattern.first) for pattern in self._openings)
        key = text[start : min(found, default=len(text) - begun)]
        is_markup = any(word in key for word in (self._key_open.first, self._value_close.first) if word)
        if len(key) > 256 or "\n" in key.strip() or is_markup or (self._has_quotes and not _WORD.fullmatch(key)):
            return -1, "", False
        ends = [pattern.match(text, start + len(key), is_end=is_end)[0] for pattern in self._openings]
        for number, end in enumerate(ends):
            if end is not None and end >= 0:
                is_string = number == 0 and len(set(ends)) == len(ends) == 2
                return end, key.strip().strip("\"'"), is_string
        return (-1 if is_end else None) if not found or None in ends else -1, "", False

    def _starts(self, text: str, position: int, words: list[str], *, is_end: bool) -> bool | None:
        """True if one of the words stands here, after white space; None if more text decides."""
        position = skip_space(text, position)
        if any(text.startswith(word, position) for word in words):
            return True
        rest = text[position:]
        return None if not is_end and any(word.startswith(rest) for word in words) else False

    def _bare(self, text: str, *, is_end: bool) -> tuple[str, str]:
        if self._is_first_text:
            lead = self._syntax.value_open[len(self._syntax.value_open.rstrip()) :]
            if lead and lead.startswith(text) and not is_end:
                return "", text
            text = text.removeprefix(lead)
            self._is_first_text = False
        words = [word for word in (self._value_close.first, self._key_open.first, *self._ends) if word]
        places = [(at, word) for word in words if (at := text.find(word)) >= 0]
        if not places:
            length = len(text) - max((overlap(text, word) for word in words), default=0)
            length -= text[:length].endswith("\n")
            return self._value_json(text[:length]), text[length:]
        place = min(places)[0]
        end, space = self._end_of_value(text, place, is_end=is_end)
        if end is None:
            length = place - (text[:place].endswith("\n"))
            return self._value_json(text[:length]), text[length:]
        if end < 0 or self._is_in_string(text[:place]):
            return self._value_json(text[: place + 1]), text[place + 1 :]
        self._is_inside = False
        value = text[:place].removesuffix("\n") if "\n" in space else text[:place]
        json_text = self._value_json(value)
        return json_text + ('"' if self._types == _STRING else typed_json(self._held, self._types)), text[end:]

    def _is_in_string(self, text: str) -> bool:
        """True if the value, with this text, is a list or an object and ends within a string of it."""
        scanner = ValueScanner("", QUOTES)
        value = (self._held + text).lstrip()
        if self._types != _STRING and value.startswith(("[", "{")):
            scanner.take(value, is_end=True)
        return scanner.is_in_string

    def _is_literal(self, text: str) -> bool:
        """True if the value, with this text, is whole and no string."""
        literal = None if self._types == _STRING else loose_json(self._held + text)
        return literal is not None and not literal.startswith('"')

    def _value_json(self, text: str) -> str:
        if self._types == _STRING:
            return as_json(text)[1:-1]
        self._held += text
        return ""

    def _end_of_value(self, text: str, place: int, *, is_end: bool) -> tuple[int | None, str]:
        """Return where a value that may end here ends with its tag: -1 if it does not, None if more text decides.

        Also the white space that belongs to the end.
        """
        syntax = self._syntax
        if self._value_close.words and text.startswith(self._value_close.first, place):
            end, _ = self._value_close.match(text, place, is_end=is_end)
            follows = self._goes_on(text, end, is_end=is_end) if end is not None and end >= 0 else False
            if end is None or follows is None:
                return None, ""
            return end if follows or self._is_literal(text[:place]) else -1, syntax.value_close
        if self._key_open.words and text.startswith(self._key_open.first, place):  # the value's own end is missing
            end, key, _ = self._key(text, place, is_end=is_end)
            return (None if end is None else place if end >= 0 and self._may_be(key) else -1), syntax.key_open
        return self._chain(text, place, is_end=is_end), syntax.closing

    def _chain(self, text: str, place: int, *, is_end: bool) -> int | None:
        """Return `place` if the words of the call's end stand there, then the next call or nothing; else as above."""
        end = place
        for word in self._ends[next(n for n, word in enumerate(self._ends) if text.startswith(word, place)) :]:
            at = skip_space(text, end)
            if not text.startswith(word, at):
                if not is_end and word.startswith(text[at:]):
                    return None
                break
            end = at + len(word)
        follows = self._starts(text, end, [self._next] * bool(self._next), is_end=is_end)
        if is_end and not text[end:].strip():
            follows = True
        return None if follows is None else place if follows else -1

    def _goes_on(self, text: str, position: int, *, is_end: bool) -> bool | None:
        """True if the next key, the call's end or the answer's end stands here; None if more text decides."""
        if is_end and not text[position:].strip():
            return True
        follows = self._starts(text, position, self._ends, is_end=is_end)
        key_open = self._key_open.first
        start = skip_space(text, position)
        if follows and not text.startswith(self._syntax.closing.lstrip(), start):  # less sure, so more must follow
            end = self._chain(text, start, is_end=is_end)
            return None if end is None else end >= 0
        if follows or not key_open:
            return follows
        is_begun = self._starts(text, position, [key_open], is_end=is_end)
        if not is_begun:
            return None if None in (follows, is_begun) else False
        end, key, _ = self._key(text, position, is_end=is_end)
        is_written_so = text.startswith(self._syntax.separator + self._syntax.key_open, position)
        return None if end is None else end >= 0 and (self._may_be(key) or is_written_so)

    def _may_be(self, key: str) -> bool:
        return key not in self._keys and (key in self._properties or not self._properties)

    def _unescaped(self, text: str, *, is_end: bool) -> tuple[str, str]:
        """Read a value up to the first quote with the next key, the next call or the end of the call behind it."""
        quote, value = self._syntax.quote, text.lstrip()
        if not value.startswith(quote):
            return ("", text) if quote.startswith(value) and not is_end else self._quoted(text, is_end=is_end)
        place = value.find(quote, len(quote))
        while place >= 0:
            ends = [pattern.match(value, place, is_end=is_end)[0] for pattern in self._behind]
            if any(end is not None and end >= 0 for end in ends):
                self._is_inside, self.is_certain = False, True
                inner, rest = value[len(quote) : place], value[place + len(quote) :]
                json_text = typed_json(inner, self._types) if self._syntax.unescaped == "all" else as_json(inner)
                return json_text, rest
            place = -1 if None in ends else value.find(quote, place + 1)
        return "", text

    def _quoted(self, text: str, *, is_end: bool) -> tuple[str, str]:
        assert self._scanner is not None
        taken = self._scanner.take(text, is_end=is_end)
        self._held += taken
        rest = text[len(taken) :]
        if not self._scanner.is_over:
            return "", rest
        value = self._held.strip()
        literal = loose_json(value, self._syntax.quote)
        end, _ = self._value_close.match(rest, 0, is_end=True)
        self._is_inside = False
        if literal is None and not self.is_certain:
            self.is_over = True
            return "", rest
        self.is_certain = True
        return as_json(value) if literal is None else literal, rest[end:] if end is not None and end > 0 else rest


Arguments = JsonArguments | Values
