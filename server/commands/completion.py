"""`splitfuse completion SHELL`: a script that completes commands, flags and the choices of flags."""

import argparse
from collections.abc import Mapping

from .settings_sources import choices_of

SHELLS = ("bash", "zsh", "fish")


def script(shell: str, parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser]) -> str:
    """Return the script for a shell to read, as in `source <(splitfuse completion bash)`. Changes the parsers."""
    import shtab  # takes 26 ms

    _add_bench_flags(commands["bench"])
    for action in (action for command in commands.values() for action in command._actions):
        action.choices = action.choices or choices_of(action.dest) or None
        if action.help == argparse.SUPPRESS:
            action.help = ""
        if action.choices is None and action.nargs != 0:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab reads it
    return shtab.complete(parser, shell) + "\n"


def _add_bench_flags(bench: argparse.ArgumentParser) -> None:
    """Add what `bench` reads with parsers of its own."""
    from ...client.bench.options import options_parser

    bench.add_argument("kind", choices=("serve", "offline"))
    for action in options_parser()._actions[1:]:  # but --help
        bench._add_action(action)
