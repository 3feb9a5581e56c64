"""Command line: reads it and hands over to the command. A user's mistake is one line and exit 2."""

import argparse
import difflib
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable

from ...engine.config.foreign_options import translated
from ...engine.errors import ConfigError, InvalidRequestError, RankLostError, SplitfuseError
from ..process.build_report import report_builds
from ..process.exit import INTERRUPTED, RANK_LOST_EXIT
from ..process.log_format import as_line, one_line
from ..process.stop_signals import StopSignals
from .parsers.parser import Parser
from .parsers.tree import build_parser
from .setting_flags import ALL, help_topic, help_words

USAGE_ERROR = 2
_PACKAGE = __name__.partition(".server.")[0] + "."  # of modules that are ours
BROKEN_PIPE = 141  # as a shell reports a program that SIGPIPE ended
# Commands whose --help has pages.
_WITH_SETTINGS = ("serve", "generate", "chat", "embed", "plan", "config", "simulate", "verify")
_BENCH_HELP = """usage: splitfuse bench serve|offline|quality [flags]

measure speed, or what rounding costs

  serve    load on a running server, any that speaks OpenAI's API
  offline  the engine in this process, beside transformers
  quality  divergence of a model's next tokens from those of its float32 form

`splitfuse bench serve --help` and so on list the flags.
"""


def run(argv: list[str], *, is_debug: bool, signals: StopSignals | None = None) -> int:
    """Run a command; the exit code. Only `serve` needs the signals."""
    logging.basicConfig(
        level=logging.DEBUG if is_debug else logging.WARNING, format="splitfuse: %(levelname)s %(name)s: %(message)s"
    )
    report_builds()
    try:
        argv = help_words(argv)
        if argv[:1] == ["bench"]:
            return _bench(argv[1:])
        args = parse(argv)
        command: Callable[..., int] = args.run
        code = command(args) if signals is None else command(args, signals=signals)
        print(end="", flush=True)  # standard output may be closed
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _broken_pipe()
    except Exception as exc:
        if is_debug:
            raise
        if isinstance(exc, ModuleNotFoundError) and str(exc.name).startswith(_PACKAGE):
            exc = ConfigError(f"{argv[0]} needs {exc.name}, which this installation lacks")
        _print_error(exc)
        return _exit_code(exc)


def _exit_code(exc: Exception) -> int:
    if isinstance(exc, RankLostError):
        return RANK_LOST_EXIT
    return USAGE_ERROR if isinstance(exc, (ConfigError, InvalidRequestError, PermissionError)) else 1


def parse(argv: list[str]) -> argparse.Namespace:
    argv, topic = help_topic(argv) if argv and argv[0] in _WITH_SETTINGS else (argv, ALL)
    parser, commands = build_parser(argv[:1], topic)
    if argv and argv[0] not in commands:
        from .parsers.suggestions import check_command

        check_command(argv, commands)
    if argv[:1] and argv[0] in ("serve", "generate", "chat", "config"):
        argv = [argv[0], *translated(argv[1:])]
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        (commands[args.command] if args.command else parser).refuse(unknown[0], hint=_prompt_hint(args, unknown))
    return args


def _prompt_hint(args: argparse.Namespace, unknown: list[str]) -> str | None:
    """Return the way to continue a text, for a text where none is read."""
    if unknown[0].startswith("-"):
        return None
    from .parsers.suggestions import with_prompt

    if args.command == "generate" and args.prompt is None:
        return f"; to continue a text: splitfuse generate {with_prompt(args.model, unknown)}"
    if args.command == "chat":
        return f"; chat reads what you type; for one text: splitfuse generate {with_prompt(args.model, unknown)}"
    return None


def _bench(argv: list[str]) -> int:
    homes = {
        "serve": "...client.bench.cli",
        "offline": "...engine.extras.bench.command",
        "quality": "...engine.extras.bench.quality",
    }
    if not argv or argv[0] in ("-h", "--help"):
        print(_BENCH_HELP, end="")
        return 0
    if argv[0] not in homes:
        near = difflib.get_close_matches(argv[0], homes, n=1)
        hint = f"; did you mean `splitfuse bench {near[0]}`?" if near else ""
        raise ConfigError(f"bench takes `serve` (a running server), `offline` (this process) or `quality`{hint}")
    try:
        module = importlib.import_module(homes[argv[0]], __package__)
    except ModuleNotFoundError as exc:
        raise ConfigError(f"bench {argv[0]} is not in this installation ({exc.name} is missing)") from exc
    if argv[0] == "serve":
        return module.main(argv[1:], parser_class=Parser) or 0
    with StopSignals(signal.SIGINT):
        return module.main(argv[1:], parser_class=Parser) or 0


def _broken_pipe() -> int:
    """The reader of our output, such as `head`, has closed it. What is still buffered must not fail at exit again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def _print_error(exc: Exception) -> None:
    text = one_line(str(exc))
    if isinstance(exc, PermissionError) and exc.filename:
        text = f"{exc.filename}: {exc.strerror}; give this user the right to it (chmod, chown), or name another place"
    elif not isinstance(exc, SplitfuseError):
        text = f"unexpected {type(exc).__name__}: {text}; --debug shows where"
    print(as_line(f"splitfuse: error: {text}", level=logging.ERROR), file=sys.stderr)
