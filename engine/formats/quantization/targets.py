"""Targets: linears that a quantization_config of compressed-tensors selects, by name, pattern of names or class."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError

# With more quantifiers, or nested ones, matching a name of 60 characters could take minutes.
_MAX_QUANTIFIERS = 4
_QUANTIFIER = re.compile(r"(?<!\()[*+?{]")
_REPEATED_GROUP = re.compile(r"\)[*+{]")


@dataclass(frozen=True)
class Targets:
    """Set of linears: exact names, patterns that match the start of a name, and the class Linear."""

    names: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]

    def rank(self, name: str) -> int:
        """Return how closely the targets match the linear `name`: 3 by name, 2 by pattern, 1 by class, 0 not at all."""
        if name in self.names:
            return 3
        if any(pattern.match(name) for pattern in self.patterns):
            return 2
        return 1 if "Linear" in self.names else 0


def targets(texts: Any, *, where: str) -> Targets:
    """Read targets from a list of texts, "re:" before a pattern, or from null. Raises ConfigError that says `where`."""
    if texts is not None and not (isinstance(texts, list) and all(isinstance(text, str) for text in texts)):
        raise ConfigError(f"{where} must be a list of texts, not {texts!r:.100}")
    plain = frozenset(text for text in texts or () if not text.startswith("re:"))
    return Targets(plain, tuple(_patterns((text[3:] for text in texts or () if text.startswith("re:")), where)))


def _patterns(texts: Iterable[str], where: str) -> Iterable[re.Pattern[str]]:
    for text in texts:
        if _REPEATED_GROUP.search(text) or len(_QUANTIFIER.findall(text)) > _MAX_QUANTIFIERS:
            raise ConfigError(f"{where}: the pattern {text!r:.100} could take too long; split it up")
        try:
            yield re.compile(text)
        except (re.error, OverflowError, RecursionError) as exc:
            raise ConfigError(f"{where}: {text!r:.100} is no regular expression ({exc})") from exc
