"""EngineArgs: EngineConfig under vLLM's name, with vLLM's keywords and flags for an argparse parser."""

import argparse
import json
from typing import Any, Self

from ...config import EngineConfig
from ...config.foreign_options import taken_keywords
from ...config.setting import Setting, settings_of


class EngineArgs(EngineConfig):
    """Settings of an engine. Takes vLLM's keywords too, like LLM. Raises ConfigError."""

    def __init__(self, model: str | None = None, **settings: Any) -> None:
        super().__init__(**taken_keywords({"model": model, **settings}, settings_of(EngineConfig).keys()))

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add a flag for every setting to a parser, and return the parser."""
        for declared in settings_of(EngineConfig).values():
            parser.add_argument(declared.flag, default=declared.default, help=_help(declared), **_kind(declared))
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """Return the settings that `add_cli_args` had parsed. Raises ConfigError."""
        return cls(**{name: getattr(args, name) for name in settings_of(EngineConfig) if hasattr(args, name)})

    def create_engine_config(self) -> EngineConfig:
        """Return the EngineConfig."""
        return EngineConfig(**{name: getattr(self, name) for name in settings_of(EngineConfig)})


class AsyncEngineArgs(EngineArgs):
    """Settings of an AsyncLLM."""


def _help(declared: Setting) -> str:
    return declared.help.replace("%", "%%")


def _kind(declared: Setting) -> dict[str, Any]:
    if declared.kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    return {"type": json.loads if declared.kind is dict else declared.kind, "choices": declared.choices or None}
