"""Checks of a value that came from outside. Each raises InvalidRequestError that names the field."""

import math
from collections.abc import Iterable

from .errors import InvalidRequestError


def check_token_ids(ids: Iterable[int], *, vocab_size: int, param: str) -> None:
    """Raise unless every id is in [0, vocab_size)."""
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"{param}: token id {shown(token_id)} is outside the vocabulary [0, {vocab_size})", param=param
            )


def check_text(text: str, *, param: str) -> None:
    """Raise if the text cannot be written as UTF-8 (a lone surrogate)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise InvalidRequestError(
            f"{param} holds a lone surrogate at character {exc.start}; send valid Unicode", param=param
        ) from exc


def shown(value: object) -> str:
    """A value as an error message quotes it: at most 40 characters."""
    text = repr(value) if not (isinstance(value, int) and abs(value) >= 2**64) else "(a number beyond 64 bits)"
    return text if len(text) <= 40 else text[:37] + "..."


def check_int(name: str, value: object, low: int, high: int) -> None:
    """Raise unless it is an int in [low, high]; a bool is none."""
    if type(value) is not int:
        raise InvalidRequestError(f"{name} must be an integer, not {type(value).__name__}", param=name)
    if not low <= value <= high:
        raise InvalidRequestError(f"{name} must be between {low} and {high}, not {shown(value)}", param=name)


def checked_float(name: str, value: object, low: float, high: float) -> float:
    """The number as a float. Raises unless it is finite and in [low, high]."""
    if type(value) not in (int, float):
        raise InvalidRequestError(f"{name} must be a number, not {type(value).__name__}", param=name)
    assert isinstance(value, (int, float))
    # Comparison first: an int beyond float range must not reach float(). NaN fails the comparison too.
    if not low <= value <= high or not math.isfinite(value):
        raise InvalidRequestError(f"{name} must be a finite number from {low:g} to {high:g}", param=name)
    return float(value)
