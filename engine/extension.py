"""Extensions of the engine: options, each in a folder of its own, imported when a setting or a call asks for them.

A folder of engine/extras/ declares itself as `EXTENSION` in its `__init__.py`, another package by the entry point
`splitfuse.engine_extensions`. A declaration names code as "module:name" below its package, so that it costs no import.
This module knows no extension by name.
"""

import errno
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from operator import attrgetter
from typing import Any

from .errors import ConfigError, UnavailableError

ENTRY_POINTS = "splitfuse.engine_extensions"
_EXTRAS = f"{__package__}.extras"
_NO_MORE_FILES = (errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Base of an extension's declaration. References are "module:name" below `package`."""

    package: str

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.package.rpartition(".")[2]

    def load(self, reference: str) -> Any:
        """Import the code that a reference names. Raises UnavailableError if the process can open no more files."""
        module, _, name = reference.partition(":")
        with importing_for(self.name):
            return attrgetter(name)(import_module(f"{self.package}.{module}"))


@dataclass(frozen=True, kw_only=True)
class EngineExtension(Declaration):
    """Declaration of an extension of the engine."""

    settings: type | None = None  # a dataclass derived from EngineSettings
    is_used: Callable[[Any], bool] = lambda config: True
    part: str | None = None  # makes its EnginePart from the EngineParts; None if it has no use for the model
    order: int = 0  # place of its part: a later one wraps what earlier ones made
    decoder: str | None = None  # finds the class of decoders of an architecture; None if it knows none
    decoder_wrapper: str | None = None  # makes a class of decoders from another one
    calls: Mapping[str, str] = field(default_factory=dict)  # functions that become methods of LLM, by name
    keywords: Mapping[str, str] = field(default_factory=dict)  # of LLM.generate: functions that change the parameters


@cache
def declared() -> tuple[EngineExtension, ...]:
    """Return the extensions in this installation: folders of engine/extras/, then other packages' entry points."""
    return tuple(sorted(declarations([_EXTRAS], ENTRY_POINTS), key=lambda extension: extension.order))


def used(config: Any) -> list[EngineExtension]:
    """Return the extensions that these settings ask for, in the order of their parts."""
    return [extension for extension in declared() if extension.is_used(config)]


def declarations(rooms: Iterable[str], entry_point_group: str) -> list[Any]:
    """Return what the folders of these packages declare as `EXTENSION`, and other packages by an entry point."""
    folders = []
    for room in rooms:
        try:
            path = import_module(room).__path__
        except ModuleNotFoundError as exc:
            if exc.name != room:
                raise
            path = []  # all have been deleted
        folders += [import_module(f"{room}.{info.name}") for info in pkgutil.iter_modules(path) if info.ispkg]
    own = [folder.EXTENSION for folder in folders if hasattr(folder, "EXTENSION")]
    return own + [point.load() for point in _entry_points().select(group=entry_point_group)]


@cache
def _entry_points() -> Any:  # EntryPoints, before Python 3.12 groups of them
    """Read the entry points of all packages once, for the engine and the server: 6 ms."""
    return entry_points()


def joined(base: type, extensions: "tuple[Any, ...]", *, name: str, module: str) -> Any:
    """Return the frozen dataclass of a base's settings and all extensions' settings."""
    sections = tuple(extension.settings for extension in extensions if extension.settings is not None)
    # A section that another one derives from may not stand before it.
    bases = [kind for kind in sections if not any(other is not kind and issubclass(other, kind) for other in sections)]
    made = type(name, (*bases, base), {"__doc__": base.__doc__, "__module__": module})
    return dataclass(frozen=True, kw_only=True)(made)


def refuse_absent(names: Iterable[str]) -> None:
    """Raise ConfigError if one of these settings or calls is of a folder of engine/extras/ that has been deleted."""
    for folder, known in import_module(_EXTRAS).NAMES.items():
        if (named := set(names) & set(known.split())) and not has_extra(folder):
            raise ConfigError(f"{named.pop()} needs engine/extras/{folder}, which this installation does not have")


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
