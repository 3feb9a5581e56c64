"""JSON files of a model folder. Imports no torch."""

import json
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
