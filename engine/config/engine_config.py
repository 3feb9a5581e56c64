"""EngineConfig: all settings of the engine, those of the extensions too. Imports no torch."""

from typing import TYPE_CHECKING

from ..extension import declared, joined
from .engine_settings import EngineSettings

if TYPE_CHECKING:
    EngineConfig = EngineSettings  # the sections are known at run time only
else:
    EngineConfig = joined(EngineSettings, declared(), name="EngineConfig", module=__name__)
