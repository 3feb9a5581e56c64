r"""Relaxed pattern: a regular expression without look-around and word boundaries, which no grammar can express.

Both only narrow what matches, so without them a pattern allows more. `^(?=A)(?!B)C` is exactly `^A` and `^C` and not
`^B`: the first two are for the grammar; the third, and word boundaries, are matched once the answer is complete, by an
engine that takes linear time. All other look-around is left out and cannot be checked.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

_COUNT = re.compile(r"\{\d+(?:,\d*)?\}")
_CODE = re.compile(r"\\u(?:[0-9a-fA-F]{4}|\{[0-9a-fA-F]+\})")
_INNER_ANCHOR = re.compile(r"[x)$]\(*\^|\$\)*[x(^]")
_GROUP = re.compile(r"\(\?(?:[:=!]|<[=!]|P?<[A-Za-z_]\w*>|[imsux-]+[:)])", re.ASCII)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_LOOK_AROUND = ("(?=", "(?!", "(?<=", "(?<!")


@dataclass(frozen=True)
class RelaxedPattern:
    """Patterns that stand for one `pattern`."""

    text: str

    @property
    def is_enforced(self) -> bool:
        """True if a grammar of `for_grammar` allows no other text than the pattern."""
        return self.is_checked and not self.excluded and self.for_grammar == self.required

    @property
    def is_checked(self) -> bool:
        """True if `required` and `excluded` say all that the pattern says."""
        return bool(self.required) and not any(map(_has_look_around, (*self.required, *self.excluded)))

    @cached_property
    def for_grammar(self) -> tuple[str, ...]:
        """Patterns that all match where the original matches."""
        stripped = (_stripped(pattern) for pattern in self.required)
        return tuple(pattern for pattern in stripped if not _has_inner_anchor(pattern))

    @property
    def required(self) -> tuple[str, ...]:
        """Patterns that must match."""
        return self._parts[0]

    @property
    def excluded(self) -> tuple[str, ...]:
        """Patterns that must not match."""
        return self._parts[1]

    @cached_property
    def _parts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        text = _for_rust(self.text)
        if text is None:
            return (), ()
        rest = text.removeprefix("^")
        if rest == text or _has_alternatives(rest):
            return (text,), ()
        required: list[str] = []
        excluded: list[str] = []
        while rest.startswith(("(?=", "(?!")):
            end = _group_end(rest)
            (required if rest[2] == "=" else excluded).append(f"^(?:{rest[3 : end - 1]})")
            rest = rest[end:]
        if rest.startswith(("*", "+", "?", "{")):  # repeated look-ahead
            return (text,), ()
        return (*required, f"^{rest}"), tuple(excluded)


def any_pattern(patterns: Iterable[RelaxedPattern]) -> str:
    """Return a pattern that matches at least where one of the patterns does."""
    return "|".join(f"(?:{pattern.for_grammar[-1] if pattern.for_grammar else ''})" for pattern in patterns)


def _for_rust(text: str) -> str | None:
    """Return a pattern of JavaScript's as Rust's engines read it; None if it has what those lack: back-references."""
    if _SURROGATE.search(text):
        return None
    units = _units(text)
    parts: list[str] = []
    at = 0
    for number, unit in enumerate(units):
        before = units[number - 1] if number else ""
        if unit.startswith("\\"):
            if unit[1:] in ("k", "c", "u", *"123456789") and not (unit[1:] == "u" and _CODE.match(text, at)):
                return None
            parts.append({r"\0": r"\x00", r"\Z": r"\z", r"\<": "<", r"\>": ">"}.get(unit, unit))
        elif unit.startswith("["):
            parts.append("[" + _for_rust_class(unit[1:]))
        elif unit.startswith("(") and text.startswith("(?", at) and not _GROUP.match(text, at):
            return None  # recursion, conditions
        elif unit == "{" and before not in (r"\p", r"\P", r"\x", r"\u") and not _COUNT.match(text, at):
            parts.append(r"\{")
        else:
            parts.append(unit)
        at += len(unit)
    return "".join(parts)


def _for_rust_class(text: str) -> str:
    """Escape what Rust reads within a class and JavaScript does not: classes within it, and their differences."""
    escapes = re.findall(r"\\.|&&|--|~~|.", text, re.DOTALL)
    return "".join({"[": r"\[", "&&": r"&\&", "--": r"-\-", "~~": r"~\~"}.get(unit, unit) for unit in escapes)


def _units(text: str) -> list[str]:
    """Escapes, classes in brackets, beginnings of groups and single characters."""
    units: list[str] = []
    at = 0
    while at < len(text):
        start = at
        if text[at] == "\\":
            at += 2
        elif text[at] == "[":
            at = _class_end(text, at)
        else:
            opening = next((opening for opening in _LOOK_AROUND if text.startswith(opening, at)), text[at])
            at += len(opening)
        units.append(text[start:at])
    return units


def _class_end(text: str, at: int) -> int:
    at += 2 if text.startswith("[^", at) else 1
    first = at
    while at < len(text) and (text[at] != "]" or at == first):
        at += 2 if text[at] == "\\" else 1
    return at + 1


def _group_end(text: str) -> int:
    """Return the end of the group with which the text begins."""
    depth = at = 0
    for unit in _units(text):
        at += len(unit)
        depth += unit.startswith("(") - (unit == ")")
        if depth == 0:
            break
    return at


def _has_alternatives(text: str) -> bool:
    """True if a | stands outside of all groups."""
    depth = 0
    for unit in _units(text):
        depth += unit.startswith("(") - (unit == ")")
        if unit == "|" and depth == 0:
            return True
    return False


def _has_look_around(text: str) -> bool:
    return any(unit in _LOOK_AROUND for unit in _units(text))


def _has_inner_anchor(text: str) -> bool:
    """Return True if ^ follows something or something follows $: no grammar has such anchors."""
    outline = "".join(unit if unit in ("^", "$", "|", "(", ")") else "x" for unit in _units(text.replace("(?:", "(")))
    return _INNER_ANCHOR.search(outline) is not None


def _stripped(text: str) -> str:
    """Return the text without look-around and word boundaries."""
    kept: list[str] = []
    skipped = 0
    for unit in _units(text):
        if unit in _LOOK_AROUND or (skipped and unit.startswith("(")):
            skipped += 1
        elif skipped:
            skipped -= unit == ")"
        elif unit not in (r"\b", r"\B"):
            kept.append(unit)
    return "".join(kept)
