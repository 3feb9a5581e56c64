"""What a user can set: EngineConfig, with each setting declared once. Imports no torch."""

from .engine_config import DEMO_DRAFT, DEMO_FOLDER, DEMO_MODEL, EngineConfig

__all__ = ["DEMO_DRAFT", "DEMO_FOLDER", "DEMO_MODEL", "EngineConfig"]
