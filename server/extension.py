"""Extensions: options of the server, each in a folder of its own, imported when a setting or a request asks for them.

A folder of server/apis/, results/, extras/ or api/ declares itself as `EXTENSION` in its `__init__.py`, another package
by the entry point `splitfuse.extensions`. A declaration names code as "module:name" below its package, so that it costs
no import. This module knows no extension by name.
"""

import dataclasses
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..engine.errors import ConfigError
from ..engine.extension import Declaration, declarations

if TYPE_CHECKING:
    from starlette.middleware import Middleware

    from ..engine.core.sampling_params import SamplingParams
    from ..engine.serving.async_engine import AsyncEngine
    from ..engine.serving.submitted_request import SubmittedRequest
    from .jobs.job import Job
    from .jobs.job_index import JobIndex
    from .jobs.result_backend import ResultBackend

logger = logging.getLogger(__name__)
ENTRY_POINTS = "splitfuse.extensions"
_ROOMS = ("api", "apis", "results", "extras")
_ROOT = __name__.rpartition(".server.")[0]


@dataclass(frozen=True, kw_only=True)
class Extension(Declaration):
    """Declaration of an extension of the server."""

    requires: tuple[str, ...] = ()  # folders of ours, as "engine/extras/pooling"
    settings: type | None = None  # a dataclass derived from ServerSettings
    is_used: Callable[[Any], bool] = lambda settings: True
    paths: tuple[str, ...] = ()  # beginnings of its routes' paths; "*" is any one segment
    router: str | None = None
    error_form: str | None = None  # ErrorForm of answers below `paths`
    endpoints: Mapping[str, str] = field(default_factory=dict)  # Endpoint by path, for batches
    kept_kinds: Mapping[str, str] = field(default_factory=dict)  # SavedKind by name
    answer_check: str | None = None  # makes the Check of an answer from sampling parameters
    receipts: str | None = None  # Part class that makes the receipts of answers
    shared_batches: str | None = None  # Batches class of a store that several servers share
    index: str | None = None  # makes the answer to a browser that opens /
    is_open: str | None = None  # true of scopes that need no key
    engine: str | None = None  # makes the engine in the place of AsyncEngine: takes the settings
    serve: str | None = None  # runs `splitfuse serve` in place of one server: takes the settings and the signals
    part: str | None = None  # Part class
    starts: Callable[[Any], bool] = lambda settings: (
        True
    )  # true if the part is made with the server, not when asked for

    @property
    def folder(self) -> str:
        """The folder as `requires` spells it."""
        return self.package.removeprefix(f"{_ROOT}.").replace(".", "/")

    @property
    def missing(self) -> str | None:
        """First folder that this installation lacks among all that the extension requires, directly or not."""
        own = next((folder for folder in self.requires if not _is_there(folder)), None)
        return own or next(filter(None, (other.missing for other in declared() if other.folder in self.requires)), None)

    def load_router(self) -> Any:
        """Import the router."""
        assert self.router is not None
        return self.load(self.router)

    def owns(self, path: str) -> bool:
        """True if one of `paths` is the beginning of this path."""
        return self._beginning.match(path) is not None

    @cached_property
    def _beginning(self) -> re.Pattern[str]:
        """Pattern of `paths`, against which each request is matched."""
        paths = (re.escape(path).replace(r"\*", "[^/]*") for path in self.paths)
        return re.compile("|".join(rf"{path}(?:/|\Z)" for path in paths) or "(?!)")


class Part:
    """State that an extension keeps for one server. Subclasses take the Service and override the hooks they need."""

    def __init__(self, service: Any) -> None:
        self.service = service

    def result_backend(self, index: "JobIndex") -> "ResultBackend | None":
        """Make the place where results are kept beside memory."""
        return None

    def middleware(self) -> "Sequence[Middleware]":
        """ASGI middleware behind the check of the key."""
        return ()

    def exception_handlers(self) -> Mapping[type[Exception], Any]:
        """Handlers of exceptions that routes raise."""
        return {}

    def job_created(self, job: "Job") -> None:
        """Hear of a job that is not submitted yet."""

    def job_accepted(self, job: "Job", handle: "SubmittedRequest", params: "SamplingParams") -> None:
        """Hear of a job that the engine has taken."""

    @property
    def num_unfinished(self) -> int:
        """Number of pieces of accepted work that go on without a request."""
        return 0

    def models(self) -> Sequence[Mapping[str, Any]]:
        """Entries of /v1/models beside the served model's, in OpenAI's form."""
        return ()

    async def open(self) -> None:
        """Begin before the model is loaded; the results are open."""

    async def resume(self, engine: "AsyncEngine") -> None:
        """Give the engine its first work; no request is taken yet."""

    async def start(self) -> None:
        """Begin once the engine takes requests."""

    async def drain(self) -> None:
        """Begin no new work."""

    async def stop(self, *, has_crashed: bool = False) -> None:
        """End work before the results are closed; may be called again. `has_crashed`: the engine died."""

    async def close(self) -> None:
        """Let go of the rest: the app ends."""


class Extensions:
    """The extensions that one server's settings ask for, and their parts."""

    def __init__(self, settings: Any) -> None:
        """Raise ConfigError if a setting asks for an extension that cannot be had."""
        self._settings = settings
        self._parts: dict[type[Part], Part] = {}
        asked = [(extension, extension.missing) for extension in declared() if _is_asked_for(extension, settings)]
        self.used = [extension for extension, folder in asked if folder is None]
        self._lacking = [(extension, folder) for extension, folder in asked if folder is not None]
        for extension, folder in self._lacking:
            if not extension.is_used(dataclasses.replace(settings, **_defaults(extension))):
                raise ConfigError(
                    f"the settings ask for {extension.name}, which needs {folder}; this installation lacks it"
                )
        for folder in dict.fromkeys(folder for _, folder in self._lacking):
            _warn(folder, ", ".join(extension.name for extension, other in self._lacking if other == folder))

    @property
    def parts(self) -> list[Part]:
        """Parts made so far."""
        return list(self._parts.values())

    def make_parts(self, service: Any) -> None:
        """Make the parts that start with the server."""
        for extension in self.used:
            if extension.part is not None and extension.starts(self._settings):
                self.part(extension.load(extension.part), service)

    def part(self, kind: type[Part], service: Any) -> Any:
        """Return the server's part of this class, made when first asked for."""
        if kind not in self._parts:
            self._parts[kind] = kind(service)
        return self._parts[kind]

    def owner_of(self, path: str) -> Extension | None:
        """Return the extension whose routes begin like this path."""
        return next((extension for extension in self.used if extension.owns(path)), None)

    def error_form_of(self, path: str) -> Any:
        """Load the form of errors below a path; None for the common one."""
        owner = self.owner_of(path)
        return None if owner is None or owner.error_form is None else owner.load(owner.error_form)

    def lack_at(self, path: str) -> str | None:
        """Say which folder the owner of this path lacks; None if no owner lacks one."""
        lacks = ((extension.name, folder) for extension, folder in self._lacking if extension.owns(path))
        return next((f"{name} needs {folder}, which this installation lacks" for name, folder in lacks), None)

    def first(self, attribute: str) -> Any:
        """Load this attribute of the first extension that declares it; None if there is none."""
        return next(self._loaded(attribute), None)

    def all(self, attribute: str) -> list[Any]:
        """Load this attribute of every extension that declares it."""
        return list(self._loaded(attribute))

    def _loaded(self, attribute: str) -> Iterator[Any]:
        for extension in self.used:
            if (reference := getattr(extension, attribute)) is not None:
                yield extension.load(reference)

    def table(self, attribute: str, own: Mapping[str, Any] | None = None) -> "LazyTable":
        """Return the entries of this mapping of every extension, loaded when looked up, beside `own` entries."""
        references = {
            key: (extension, reference)
            for extension in self.used
            for key, reference in getattr(extension, attribute).items()
        }
        return LazyTable(references, own or {})


class LazyTable(Mapping[str, Any]):
    """Mapping of names to code that is imported when its name is looked up."""

    def __init__(self, references: Mapping[str, tuple[Extension, str]], own: Mapping[str, Any]) -> None:
        self._references = references
        self._own = own

    def __getitem__(self, key: str) -> Any:
        if key in self._own:
            return self._own[key]
        extension, reference = self._references[key]
        return extension.load(reference)

    def __iter__(self) -> Iterator[str]:
        return iter((*self._own, *self._references))

    def __len__(self) -> int:
        return len(self._own) + len(self._references)


@cache
def declared() -> tuple[Extension, ...]:
    """Extensions in this installation: the folders of `_ROOMS`, then other packages' entry points."""
    return tuple(declarations([f"{__package__}.{room}" for room in _ROOMS], ENTRY_POINTS))


def has_extension(name: str) -> bool:
    """True if an extension of this name is in this installation."""
    return any(extension.name == name for extension in declared())


def _is_asked_for(extension: Extension, settings: Any) -> bool:
    if extension.settings is not None and not isinstance(settings, extension.settings):
        return False  # the settings class lacks this extension's fields
    return extension.is_used(settings)


@cache
def _warn(folder: str, names: str) -> None:
    """Log once that these extensions are left out: `serve` looks at them twice."""
    logger.warning("not served, because this installation lacks %s: %s", folder, names)


def _defaults(extension: Extension) -> dict[str, Any]:
    if extension.settings is None:
        return {}
    names = vars(extension.settings).get("__annotations__", {})
    return {item.name: item.default for item in dataclasses.fields(extension.settings) if item.name in names}


@cache
def _is_there(folder: str) -> bool:
    try:
        return find_spec(f"{_ROOT}.{folder.replace('/', '.')}") is not None
    except ModuleNotFoundError:  # its parent is not there
        return False
