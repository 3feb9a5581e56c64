"""JSON files of a model folder, and positive numbers in their fields. Imports no torch."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigError


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of the model folder. Raises ConfigError that names the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise ConfigError(f"{path} is missing; is this a Hugging Face model folder?") from exc
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as exc:
        raise ConfigError(f"{path} cannot be read as JSON ({exc}); fetch the file again") from exc
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a JSON object; fetch the file again")
    return value


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
