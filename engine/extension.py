"""Extras by name: `load_extra("gguf.file")` imports engine/formats/gguf/file.py at its first use.

Parts of the engine reach extras only through this function, so any folder of engine/extras/ can be deleted. A setting
or field that needs a deleted extra is refused by name; the rest runs.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .errors import ConfigError, UnavailableError

_EXTRAS = f"{__package__}.extras"
_NO_MORE_FILES = (errno.EMFILE, errno.ENFILE)


def has_extra(name: str) -> bool:
    """True if the extra is installed."""
    return find_spec(f"{_EXTRAS}.{name}") is not None


def load_extra(module: str, *, needed_for: str) -> Any:
    """Import `engine/extras/<module>`; dots separate folders. Raises ConfigError if the extra is not installed,
    UnavailableError if the process can open no more files.

    `needed_for`: the setting or field that needs the extra, for the error message.
    """
    name = module.partition(".")[0]
    with importing_for(needed_for):
        if has_extra(name):
            return import_module(f"{_EXTRAS}.{module}")
    raise _lack(needed_for, name)


def _lack(needed_for: str, name: str) -> ConfigError:
    return ConfigError(f"{needed_for} needs engine/extras/{name}, which this installation does not have")


@contextmanager
def importing_for(needed_for: str) -> Iterator[None]:
    """Raise ConfigError if an import needs an extra that is not installed, UnavailableError if the process can open
    no more files for it: later it can.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        if not (exc.name or "").startswith(f"{_EXTRAS}."):
            raise
        raise _lack(needed_for, str(exc.name).removeprefix(f"{_EXTRAS}.").partition(".")[0]) from exc
    except OSError as exc:
        if exc.errno not in _NO_MORE_FILES:
            raise
        raise UnavailableError(f"the server cannot load what {needed_for} needs now ({exc}); try again") from exc
