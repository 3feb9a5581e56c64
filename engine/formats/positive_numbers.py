"""Positive numbers in a model's fields. Imports no torch."""

import math
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError


def positive_int(fields: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return the positive integer under `name`; `default` if it is missing or null. Raises ConfigError."""
    value = fields.get(name)
    value = default if value is None else value
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name} must be a positive integer, not {value!r}")
    return value


def positive_number(fields: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """Return the finite number above 0 under `name`; `default` if it is missing or null. Raises ConfigError."""
    value: Any = fields.get(name)
    value = default if value is None else value
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise ConfigError(f"{name} must be a number above 0, not {value!r}")
    return float(value)
