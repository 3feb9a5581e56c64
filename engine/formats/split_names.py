"""Names of a split GGUF's parts: NAME-00001-of-00003.gguf. Imports no torch."""

import re
from collections.abc import Iterable
from pathlib import Path

from ..errors import ConfigError

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_MAX_PARTS = 999


def part_names(name: str) -> list[str]:
    """Return the names of all parts of the model that a file is part of; the name alone if it is no part's."""
    match = _PART.fullmatch(name)
    if match is None or not 1 <= int(match[3]) <= _MAX_PARTS:
        return [name]
    ending = name[len(match[1]) + 6 :]  # with the case of the suffix
    return [f"{match[1]}-{number:05d}{ending}" for number in range(1, int(match[3]) + 1)]


def parts_of(path: Path) -> list[Path]:
    """Return the paths of all parts. Raises ConfigError that names a missing one."""
    paths = [path.with_name(name) for name in part_names(path.name)]
    missing = [part.name for part in paths if not part.exists()] if len(paths) > 1 else []
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ConfigError(f"{path} is one of {len(paths)} parts, and {missing[0]}{more} is missing; fetch it, too")
    return paths


def whole_models(names: Iterable[str]) -> list[str]:
    """Return the names without image encoders, importance matrices, and all parts but a model's first."""
    return [name for name in names if not is_beside(name) and part_names(Path(name).name)[0] == Path(name).name]


def is_beside(name: str) -> bool:
    """True if a file lies beside a model and is none: the encoder of images, or weights' importance."""
    return bool(re.search(r"(^|[-._])(mmproj|imatrix)([-._]|$)", Path(name).name.lower()))
