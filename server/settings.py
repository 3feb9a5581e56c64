"""Settings: everything that `splitfuse serve` can be told, the extensions' settings too."""

from typing import TYPE_CHECKING

from ..engine.extension import joined
from .extension import declared
from .server_settings import ServerSettings

if TYPE_CHECKING:
    Settings = ServerSettings  # the sections are known at run time only
else:
    Settings = joined(ServerSettings, declared(), name="Settings", module=__name__)
