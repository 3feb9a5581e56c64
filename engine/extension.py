"""Extras by name: `load_extra("gguf.file")` imports engine/extras/gguf/file.py when it is first needed.

Parts of the engine reach an extra only through this function, so each folder of engine/extras/ can be deleted: what
needs it is then refused by name, and the rest runs.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .errors import ConfigError

_EXTRAS = f"{__package__}.extras"


def has_extra(name: str) -> bool:
    """True if the folder of the extra is there."""
    return find_spec(f"{_EXTRAS}.{name}") is not None


def load_extra(module: str, *, needed_for: str) -> Any:
    """Import `engine/extras/<module>`; dots separate folders. Raises ConfigError if the extra's folder is not there.

    `needed_for`: the setting or field that asks for the extra, for the message.
    """
    name = module.partition(".")[0]
    if not has_extra(name):
        raise ConfigError(f"{needed_for} needs engine/extras/{name}, which this installation does not have")
    return import_module(f"{_EXTRAS}.{module}")
