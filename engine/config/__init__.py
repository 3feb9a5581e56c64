"""Settings of the engine: EngineConfig, with each setting declared once, and ResolvedConfig. Imports no torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .named_models import DEMO_DRAFT, DEMO_FOLDER, DEMO_MODEL

if TYPE_CHECKING:
    from .engine_config import EngineConfig, ResolvedConfig

__all__ = ["DEMO_DRAFT", "DEMO_FOLDER", "DEMO_MODEL", "EngineConfig", "ResolvedConfig"]


def __getattr__(name: str) -> Any:
    # When first asked for: extensions, whose settings are joined there, derive them from a class of this package.
    if name not in ("EngineConfig", "ResolvedConfig"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".engine_config", __name__), name)
