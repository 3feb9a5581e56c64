"""Canonical JSON of RFC 8785 (JCS): equal values have equal bytes, in whatever language they were read and written.

Keys are sorted by UTF-16 units, there is no white space, text is UTF-8, numbers are spelled like JavaScript's.
"""

import json
from decimal import Decimal
from typing import Any

_LARGEST_INT = 2**53 - 1  # larger integers change in languages whose numbers are doubles
_PLAIN = range(-6, 21)  # decimal exponents of numbers that are spelled without one


def canonical(value: Any) -> bytes:
    """Return the canonical bytes. Raises ValueError for numbers and texts that JSON cannot carry everywhere."""
    return _text(value).encode("utf-8")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        items = sorted(value.items(), key=lambda item: item[0].encode("utf-16-be"))
        return "{" + ",".join(f"{_text(name)}:{_text(item)}" for name, item in items) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, float):
        return _number(value)
    if type(value) is int and abs(value) > _LARGEST_INT:
        raise ValueError(f"{value} is beyond the integers of a double")
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    """Spell a float like ECMAScript's Number::toString. Raises ValueError if it is not finite."""
    if value - value != 0:
        raise ValueError(f"{value} is no number of JSON")
    if value == 0:
        return "0"
    number = Decimal(repr(value)).normalize()
    exponent = number.adjusted()
    if exponent in _PLAIN:
        return f"{number:f}"
    sign, digits, _ = number.as_tuple()
    first, *rest = map(str, digits)
    return f"{'-' * sign}{first}{'.' * bool(rest)}{''.join(rest)}e{exponent:+d}"
