"""Settings: everything that `splitfuse serve` can be told, the extensions' settings too."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .extension import declared
from .server_settings import ServerSettings


def _settings_class() -> type[ServerSettings]:
    sections = tuple(extension.settings for extension in declared() if extension.settings is not None)
    # A section that another one derives from may not stand before it.
    bases = [kind for kind in sections if not any(other is not kind and issubclass(other, kind) for other in sections)]
    made = type("Settings", (*bases, ServerSettings), {"__doc__": "Every setting.", "__module__": __name__})
    return dataclass(frozen=True, kw_only=True)(made)


if TYPE_CHECKING:
    Settings = ServerSettings  # the sections are known at run time only
else:
    Settings = _settings_class()
