"""Parser: argparse whose errors are one line that names the right thing to type."""

import argparse
import difflib
import re
import shutil
from collections.abc import Sequence
from typing import Any, NoReturn

from ....engine.config.setting import KIND_NAMES
from ....engine.errors import ConfigError

_HELP_WIDTH = 120
_WRONG_NUMBER = re.compile(r"invalid (int|float) value: (.*)")  # argparse's words
_OF_OTHERS = {"-p": "--port"}  # short flags that are ours elsewhere; foreign_options.json has the rest
_KINDS = {kind.__name__: name for kind, name in KIND_NAMES.items()}


class HelpFormatter(argparse.HelpFormatter):
    """Wider than argparse's, so that most texts are one line."""

    def __init__(self, prog: str) -> None:
        width = min(_HELP_WIDTH, shutil.get_terminal_size((_HELP_WIDTH, 24)).columns)
        super().__init__(prog, max_help_position=34, width=width)


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are ConfigErrors, so that all end as one line."""

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError."""
        message = _WRONG_NUMBER.sub(lambda found: f"{found[2]} is not {_KINDS[found[1]]}", message)
        raise ConfigError(f"{message} (see `{self.prog} --help`)")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Like argparse's, but an unknown word is refused by `refuse`."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.refuse(unknown[0])
        return parsed

    def refuse(self, word: str, *, hint: str | None = None) -> NoReturn:
        """Raise ConfigError for a word that is not known; without a hint, name the flag that was probably meant."""
        known = [flag for action in self._actions for flag in action.option_strings]
        if (ours := _OF_OTHERS.get(word)) in known:
            hint = f"; here it is {ours}"
        near = difflib.get_close_matches(word.partition("=")[0], known, n=1, cutoff=0.75)
        if hint is None and "--model" in known and not word.startswith("-"):
            hint = f"; did you mean --model {word}?"
        if hint is None:
            hint = f"; did you mean {near[0]}?" if near else f" (see `{self.prog} --help`)"
        raise ConfigError(f"{word} is not known to `{self.prog}`{hint}")
