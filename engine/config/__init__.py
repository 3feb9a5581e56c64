"""Settings of the engine: EngineConfig, with each setting declared once, and ResolvedConfig. Imports no torch."""

from .engine_config import EngineConfig
from .named_models import DEMO_DRAFT, DEMO_FOLDER, DEMO_MODEL
from .resolved_config import ResolvedConfig

__all__ = ["DEMO_DRAFT", "DEMO_FOLDER", "DEMO_MODEL", "EngineConfig", "ResolvedConfig"]
