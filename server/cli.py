"""The `splitfuse` command. For `serve`, signals are handled before any slow import."""

import sys
from collections.abc import Sequence

from ..engine.language.workers.heap import share_one_heap
from .process.queued_output import queued_output
from .process.stop_signals import StopSignals


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    is_debug = "--debug" in argv
    argv = [word for word in argv if word != "--debug"]
    if argv[:1] != ["serve"]:
        return _run(argv, is_debug=is_debug)
    share_one_heap()
    with queued_output(), StopSignals() as signals:
        return _run(argv, is_debug=is_debug, signals=signals)


def _run(argv: list[str], *, is_debug: bool, signals: StopSignals | None = None) -> int:
    from .commands.command_line import run

    return run(argv, is_debug=is_debug, signals=signals)
