"""CallSyntax: the texts around the names, arguments and values of a model's calls of tools."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

NUMBER, ID, NAME = "\x01", "\x02", "\x03"  # places of a call's number, its id and a name in the texts
_PLACES = {NUMBER: re.compile(r"\d+"), ID: re.compile(r"[\w-]+"), NAME: re.compile(r"[A-Za-z0-9_.-]+")}
TAG = re.compile(rf"<[^<>\s{NUMBER}{ID}{NAME}]+>|\[/?[A-Z_]+\]")
_WORDS = re.compile(rf"{TAG.pattern}|[{NUMBER}{ID}{NAME}]|\](?=\S)|(?:(?!{TAG.pattern})[^\s{NUMBER}{ID}{NAME}])+")
_TAGS = re.compile(rf"{TAG.pattern}|<[^<>\s]+(?=\s|\Z)")
_SPACE = re.compile(r"\s*")
_MIN_TAG_CHARS = 4  # shorter texts, and JSON, begin no call by themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """Syntax of calls: `before`, a call, `between`, a call, …, `after`; a call is opening, name, arguments, closing.

    json: a JSON object, after the name and `middle`; with `name_key` the whole call is an object, `opening` ends before
    its brace and `closing` begins after it. tags, keywords: each value is between `value_open` and `value_close`, after
    `key_open` and its key; a string's `quote` stands inside of both. channels: messages of gpt-oss.
    """

    arguments: Literal["json", "tags", "keywords", "channels"]
    before: str = ""
    opening: str = ""
    name_open: str = ""  # within the call's object, or before the name
    middle: str = ""
    closing: str = ""
    between: str | None = None  # None: one call is all
    after: str = ""
    trailer: str = ""  # what may follow: the end of the turn
    name_key: str = ""
    arguments_key: str = ""
    arguments_close: str = ""  # within the call's object, after the arguments
    is_text: bool = False  # the arguments' JSON is a string itself
    key_open: str = ""
    value_open: str = ""
    string_open: str = ""  # instead of value_open, before a string
    value_close: str = ""
    separator: str = ""
    quote: str = ""
    unescaped: Literal["", "strings", "all"] = ""  # values within quotes that stand as they are, "all": numbers, too
    others: "tuple[CallSyntax, ...]" = ()  # syntaxes that are read, too, and never asked for

    def around(self, name: str) -> tuple[str, str]:
        """Return the texts before and after the arguments of a function's call."""
        opening = f"{self.opening}{self.name_open}{name}{self.middle}".replace(NAME, name)
        return opening, f"{self.arguments_close}{self.closing}"

    @property
    def special_texts(self) -> tuple[str, ...]:
        """Parts of the texts that may be special tokens."""
        texts = [value for name in self.__slots__ if isinstance(value := getattr(self, name), str)]
        own = tags_of(" ".join(texts))
        return tuple(dict.fromkeys([*own, *(tag for other in self.others for tag in other.special_texts)]))

    @property
    def trigger(self) -> str:
        """Text that always begins calls, "" if no text is that clear."""
        if self.arguments == "channels":
            return ""
        text = self.before + self.opening + self.name_open
        tag = TAG.match(text)
        if tag is not None and tag[0] not in self.trailer:
            return tag[0]
        return text if tag is not None else first if is_tag(first := Pattern(text).first) else ""


class Pattern:
    """Matcher of one text with its places, whatever the white space between its words."""

    def __init__(self, text: str) -> None:
        self.words = _WORDS.findall(text)
        self.first = self.words[0] if self.words else ""

    def match(self, text: str, position: int = 0, *, is_end: bool) -> tuple[int | None, str]:
        """Return the position after the match and the name in it: -1 without a match, None if more text decides."""
        name = ""
        for word in self.words:
            position = skip_space(text, position)
            if word in _PLACES:
                found = _PLACES[word].match(text, position)
                end = position if found is None else found.end()
                if end == len(text) and not is_end:
                    return None, ""
                if found is None:
                    return -1, ""
                name = found[0] if word == NAME else name
            else:
                end = position + len(word)
                if not text.startswith(word, position):
                    is_begun = end > len(text) and word.startswith(text[position:])
                    return (None if is_begun and not is_end else -1), ""
            position = end
        return position, name


def skip_space(text: str, position: int) -> int:
    """Return the position after white space."""
    found = _SPACE.match(text, position)
    return position if found is None else found.end()


def tags_of(text: str) -> tuple[str, ...]:
    """Return the tags, whole or cut by white space, that may be special tokens."""
    return tuple(dict.fromkeys(_TAGS.findall(text)))


def is_tag(word: str) -> bool:
    """True if a word is no ordinary text."""
    return bool(TAG.match(word)) or (len(word) >= _MIN_TAG_CHARS and word[0] not in '[{"')


@cache
def heads(syntax: CallSyntax) -> tuple[tuple[Pattern, ...], tuple[Pattern, ...]]:
    """Return the patterns of the text before arguments, or a call's object: of the first call, and of later ones."""
    middles = [syntax.middle, re.sub(rf"\[[A-Z_]+\]{ID}", "", syntax.middle)]  # models leave out ids
    ends = [""] if syntax.name_key else [f"{syntax.name_open}{NAME}{middle}" for middle in dict.fromkeys(middles)]
    starts = dict.fromkeys([syntax.before + syntax.opening, syntax.opening])
    first = [start + end for start in starts for end in ends]
    if syntax.name_key and syntax.before.endswith("["):
        first.append(syntax.before[:-1])  # one call, without a list
    separators = dict.fromkeys([syntax.between or "", "", ",", ";"])
    later = [Pattern(separator + syntax.opening + end) for separator in separators for end in ends]
    patterns = list(map(Pattern, first))
    tagged = [pattern for pattern in patterns if is_tag(pattern.first)]
    return tuple(tagged or patterns[: None if syntax.name_key else 1]), tuple(later)


def triggers_of(syntax: CallSyntax) -> tuple[str, ...]:
    """Return the texts that begin a call, also one that stands without the tag around all calls."""
    firsts = [pattern.first for pattern in heads(syntax)[0]]
    others = [first for first in firsts if first.startswith("<") and first not in syntax.trailer]
    return tuple(dict.fromkeys(filter(None, [syntax.trigger, *others])))
