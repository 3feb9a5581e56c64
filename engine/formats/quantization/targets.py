"""Targets: linears that a quantization_config of compressed-tensors selects, by name, pattern of names or class."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError
from ..linear_pattern import linear_pattern


@dataclass(frozen=True)
class Targets:
    """Set of linears: exact names, patterns that match the start of a name, and the class Linear."""

    names: frozenset[str]
    patterns: tuple[Callable[[str], bool], ...]

    def rank(self, name: str) -> int:
        """Return how closely the targets match the linear `name`: 3 by name, 2 by pattern, 1 by class, 0 not at all."""
        if name in self.names:
            return 3
        if any(matches(name) for matches in self.patterns):
            return 2
        return 1 if "Linear" in self.names else 0


def targets(texts: Any, *, where: str) -> Targets:
    """Read targets from a list of texts, "re:" before a pattern, or from null. Raises ConfigError that says `where`."""
    if texts is not None and not (isinstance(texts, list) and all(isinstance(text, str) for text in texts)):
        raise ConfigError(f"{where} must be a list of texts, not {texts!r:.100}")
    plain = frozenset(text for text in texts or () if not text.startswith("re:"))
    return Targets(plain, tuple(_patterns((text[3:] for text in texts or () if text.startswith("re:")), where)))


def _patterns(texts: Iterable[str], where: str) -> Iterable[Callable[[str], bool]]:
    for text in texts:
        try:
            yield linear_pattern(f"^(?:{text})")
        except ValueError as exc:
            raise ConfigError(f"{where}: the pattern {text!r:.100} cannot be used: {exc}") from exc
