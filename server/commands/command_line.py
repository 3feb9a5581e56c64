"""The command line: reads it and hands over to the command. A user's mistake is one line and exit 2."""

import argparse
import dataclasses
import difflib
import functools
import importlib
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ...engine.config.foreign_options import FOREIGN_OPTIONS, translated
from ...engine.config.named_models import DEMO, NAMES, SMOLLM2, default_model
from ...engine.config.setting import KIND_NAMES
from ...engine.errors import ConfigError, InvalidRequestError, RankLostError, SplitfuseError
from .. import package_version
from ..extension import Extensions
from ..process.build_report import report_builds
from ..process.exit import INTERRUPTED, RANK_LOST_EXIT, ending_at_ctrl_c
from ..process.log_format import as_line
from ..process.stop_signals import StopSignals
from ..server_settings import ServerSettings
from .completion import SHELLS
from .setting_flags import ALL, SECTIONS, add_flags, help_topic, help_words
from .settings_sources import ALL_FIELDS, MODEL_FIELDS, REPLICA_VARIABLE, resolve, resolve_sources

USAGE_ERROR = 2
_PACKAGE = __name__.partition(".server.")[0] + "."  # of modules that are ours
_MODEL_HELP = (
    f"short name (`splitfuse models`), Hugging Face id, folder, .gguf file, {SMOLLM2}, or {DEMO}; none = {SMOLLM2} "
    f"if installed, else {DEMO}"
)
BROKEN_PIPE = 141  # as a shell reports a program that SIGPIPE ended
_HELP_WIDTH = 120
_WITH_SETTINGS = ("serve", "generate", "chat", "plan", "config", "simulate")  # commands whose --help has pages
_OWN_FLAGS = ("--help", "--version", "--debug")  # flags without a command
_BENCH_HELP = """usage: splitfuse bench serve|offline [flags]

measure speed

  serve    load on a running server, any that speaks OpenAI's API
  offline  the engine in this process, beside transformers

`splitfuse bench serve --help` and `splitfuse bench offline --help` list the flags.
"""
# Commands of ollama, vLLM, llama.cpp and other tools: the first that is a command here is the one that was meant.
_OF_OTHERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("start", "launch", "server", "up"), ("serve",)),
    **dict.fromkeys(("run", "cli", "repl"), ("chat",)),
    **dict.fromkeys(("complete", "completions"), ("generate",)),
    **dict.fromkeys(("collect-env", "info", "check", "env"), ("doctor",)),
    **dict.fromkeys(("list", "ls", "show"), ("models",)),
    **dict.fromkeys(("remove", "delete"), ("rm",)),
    "status": ("ps",),
    **dict.fromkeys(("download", "fetch"), ("pull",)),
    **dict.fromkeys(("benchmark", "perf"), ("bench",)),
    "estimate": ("plan",),
}
_INSTEAD = {
    "version": "--version",
    "stop": "serve` ends with Ctrl-C, or with SIGTERM; `splitfuse top",
    "run-batch": "serve`, then POST /v1/batches, with `splitfuse serve --results FILE",
}


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
        args = _parse(argv)
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
    return USAGE_ERROR if isinstance(exc, (ConfigError, InvalidRequestError)) else 1


class _HelpFormatter(argparse.HelpFormatter):
    """Wider than argparse's, so that most texts are one line."""

    def __init__(self, prog: str) -> None:
        width = min(_HELP_WIDTH, shutil.get_terminal_size((_HELP_WIDTH, 24)).columns)
        super().__init__(prog, max_help_position=34, width=width)


class _Parser(argparse.ArgumentParser):
    """argparse whose complaints are ConfigErrors, so that all end as one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see `{self.prog} --help`)")


def _parse(argv: list[str]) -> argparse.Namespace:
    argv, topic = help_topic(argv) if argv and argv[0] in _WITH_SETTINGS else (argv, ALL)
    parser, commands = _build_parser(argv[:1], topic)
    _check_command(argv, commands)
    if argv[:1] and argv[0] in ("serve", "generate", "chat", "config"):
        argv = [argv[0], *translated(argv[1:])]
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        if args.command is None:
            raise ConfigError(f"{unknown[0]} is not known to `splitfuse` (see `splitfuse --help`)")
        known = [flag for action in commands[args.command]._actions for flag in action.option_strings]
        near = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f" (see `splitfuse {args.command} --help`)"
        if args.command == "generate" and args.prompt is None and not unknown[0].startswith("-"):
            hint = f"; to continue a text: splitfuse generate {_with_prompt(args.model, unknown)}"
        elif args.command == "chat" and not unknown[0].startswith("-"):
            hint = f"; chat reads what you type; for one text: splitfuse generate {_with_prompt(args.model, unknown)}"
        raise ConfigError(f"{unknown[0]} is not known to `splitfuse {args.command}`{hint}")
    return args


def _with_prompt(model: str, unknown: Sequence[str]) -> str:
    """Return the arguments with which `generate` continues what stands behind MODEL, or what stands in its place."""
    if is_model(model):
        return f"{model} -p {shlex.quote(' '.join(unknown))}"
    return f"-p {shlex.quote(' '.join([model, *unknown]))}"


def is_model(word: str) -> bool:
    """True if a word of the command line can only be a model."""
    return word in NAMES or word.lower().endswith(".gguf") or "/" in word


def _check_command(argv: Sequence[str], commands: Mapping[str, argparse.ArgumentParser]) -> None:
    """Raise ConfigError that names the command that was probably meant, where there is one."""
    word = argv[0] if argv else ""
    flag = word.partition("=")[0]
    of_serve = {flag for action in commands["serve"]._actions[1:] for flag in action.option_strings}
    if flag in of_serve or flag in FOREIGN_OPTIONS:
        raise ConfigError(f"{flag} goes with a command: splitfuse serve {' '.join(argv)}")
    known = [*commands, "bench"]
    if word in known:
        return
    of_others = [name for name in _OF_OTHERS.get(word, ()) if name in known]
    near = of_others or difflib.get_close_matches(word, known if word[:1] != "-" else (), n=1, cutoff=0.7)
    meant = _INSTEAD.get(word) or (f"serve {word}" if is_model(word) else next(iter(near), None))
    if meant is not None:
        raise ConfigError(f"{word} is not a command; did you mean `splitfuse {meant}`?")
    near = difflib.get_close_matches(flag, _OWN_FLAGS, n=1) if flag.startswith("--") and flag not in _OWN_FLAGS else []
    if near:
        raise ConfigError(f"{flag} is not known to `splitfuse`; did you mean {near[0]}?")


def _build_parser(
    command: Sequence[str], topic: str = ALL
) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    parser = _Parser(prog="splitfuse", description="LLM inference server. `splitfuse serve` serves a small model.")
    parser.add_argument("--version", action="version", version=f"splitfuse {package_version()}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks and the log")

    def show_help(_args: argparse.Namespace) -> int:
        parser.print_help()
        return 0

    parser.set_defaults(run=show_help)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    command_of = functools.partial(_command, commands, topic=topic)
    made = {
        "serve": command_of("serve", _serve, "serve a model over HTTP", ALL_FIELDS),
        "generate": command_of("generate", _generate, "continue a prompt, in this process or at a URL", MODEL_FIELDS),
        "chat": command_of("chat", _chat, "talk to a model, in this process or at a URL", MODEL_FIELDS),
        "plan": command_of("plan", _plan, "what fits, before anything is loaded", MODEL_FIELDS),
        "config": command_of("config", _config, "the settings in force, and where each comes from", ALL_FIELDS),
        "doctor": command_of("doctor", _doctor, "what is installed, what is missing, how to fix it", ()),
    }
    made |= _add_machine(commands)
    made["help"] = commands.add_parser("help", help="the help of a command: help COMMAND [PAGE]")
    commands.add_parser("bench", help="measure: `bench serve` a running server, `bench offline` the engine")
    made |= _add_rehearsals(commands, command, topic)
    made["completion"] = commands.add_parser("completion", help="print what has a shell complete commands and flags")
    made["completion"].add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    made["help"].add_argument("topic", nargs="?", choices=tuple(commands.choices), metavar="COMMAND")
    made["completion"].set_defaults(run=functools.partial(_completion, parser, commands.choices))
    made["doctor"].usage = "splitfuse doctor [MODEL] [--json] [--build]"
    made["doctor"].add_argument("--json", action="store_true", dest="as_json", help="print a JSON list of the findings")
    made["doctor"].add_argument("--build", action="store_true", help="build the CPU library now, if there is none yet")
    made["config"].add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")
    made["plan"].add_argument("--memory", metavar="SIZE", help="as 24GB; of the GPU, or free on the machine")
    made["generate"].add_argument("-p", "--prompt", help="text to continue; - or nothing: standard input")
    for name in ("generate", "chat"):
        made[name].add_argument("-n", "--max-tokens", type=_read_as(int), metavar="N", help="most tokens of an answer")
        made[name].add_argument(
            "--temperature", type=_read_as(float), metavar="NUMBER", help="0 = always the likeliest token"
        )
        made[name].add_argument("--url", help="a running server, as http://localhost:8000, in place of a model here")
        made[name].add_argument(
            "--api-key", dest="client_key", metavar="KEY", help="if that server has keys; or SPLITFUSE_API_KEY"
        )
    made["chat"].add_argument("--system", metavar="TEXT", help="system message")
    made["chat"].add_argument("--verbose", action="store_true", help="print the speed after each answer")
    made["chat"].add_argument("--plain", action="store_true", help="print answers as they come, without Markdown")
    return parser, made


def _add_machine(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """The commands about models on disk and running servers."""
    made: dict[str, argparse.ArgumentParser] = {}
    for name, run, text in (
        ("models", _models, "models on this machine, and short names of others"),
        ("pull", _pull, "fetch a model from the Hugging Face hub"),
        ("rm", _rm, "remove a model that was fetched"),
        ("ps", _ps, "servers that run on this machine"),
    ):
        made[name] = commands.add_parser(
            name, help=text, description=text, allow_abbrev=False, formatter_class=_HelpFormatter
        )
        made[name].set_defaults(run=run)
    for name in ("pull", "rm"):
        made[name].add_argument("model", metavar="MODEL", help="a short name, OWNER/NAME, or OWNER/NAME:FILE.gguf")
    made["models"].add_argument("--supported", action="store_true", help="the families that can be served")
    for name in ("models", "ps"):
        made[name].add_argument("--json", action="store_true", dest="as_json", help="print JSON")
    made["rm"].add_argument("-y", "--yes", action="store_true", help="do not ask")
    made["ps"].add_argument("--api-key", metavar="KEY", help="if the servers have keys; or SPLITFUSE_API_KEY")
    return made


def _add_rehearsals(commands: Any, command: Sequence[str], topic: str) -> dict[str, argparse.ArgumentParser]:
    """The commands that need no model."""
    made: dict[str, argparse.ArgumentParser] = {}
    for name, run, text in (
        ("simulate", _simulate, "the scheduler over a load, without a model"),
        ("replay", _replay, "a recorded run again: were the decisions the same?"),
        ("plot", _plot, "draw recordings, simulations and step logs side by side"),
        ("explain", _explain, "what a recorded request waited for and was given"),
        ("top", _top, "what a running server does, in the terminal"),
    ):
        made[name] = commands.add_parser(
            name, help=text, description=text, allow_abbrev=False, formatter_class=_HelpFormatter
        )
        made[name].set_defaults(run=run)
    made["explain"].add_argument("file", type=Path, metavar="FILE", help="what `serve --record FILE` wrote")
    made["explain"].add_argument("id", metavar="ID", help="the request's id, its beginning, or its number from 0")
    text = "print a JSON list, one per output"
    made["explain"].add_argument("--json", action="store_true", dest="as_json", help=text)
    made["top"].add_argument("--url", default="http://127.0.0.1:8000", help="the server, default http://127.0.0.1:8000")
    made["top"].add_argument("--api-key", metavar="KEY", help="if the server has keys; or SPLITFUSE_API_KEY")
    made["top"].add_argument("--once", action="store_true", help="print one screen and end")
    made["replay"].add_argument("file", type=Path, metavar="FILE", help="what `serve --record FILE` wrote")
    made["plot"].add_argument("files", nargs="+", type=Path, metavar="FILE", help="a recording or a step log")
    picture: dict[str, Any] = {"type": Path, "default": Path("splitfuse.png"), "metavar": "PNG"}
    made["plot"].add_argument("-o", "--output", help="picture to write, default splitfuse.png", **picture)
    if {"simulate", "completion"} & {*command}:  # its flags stand with the code that reads them
        from ...engine.extras.simulation.recording import DECIDING_FIELDS
        from .simulate import add_arguments

        add_arguments(made["simulate"])
        made["simulate"].usage = "splitfuse simulate [flags]"
        add_flags(made["simulate"], (*DECIDING_FIELDS, "num_kv_blocks"), topic=topic, common=())
    return made


def _command(
    commands: Any, name: str, run: Callable[..., int], text: str, fields: Sequence[str], *, topic: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=text,
        allow_abbrev=False,
        formatter_class=_HelpFormatter,
        usage=f"splitfuse {name} [MODEL]" + " [flags]" * bool(fields),
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help=_MODEL_HELP)
    if fields:
        add_flags(parser, fields, topic=topic, common=SECTIONS if fields == ALL_FIELDS else ("model", "memory"))
    parser.set_defaults(run=run)
    return parser


def _serve(args: argparse.Namespace, *, signals: StopSignals) -> int:
    from ..process.deferred_import import defer_meta_kernels

    settings = _settings_with_model(args)
    if settings.load_format != "dummy":  # random weights are drawn by what the meta kernels register
        defer_meta_kernels()
    if (serve_otherwise := Extensions(settings).first("serve")) is not None:
        serve_otherwise(settings, signals)
    else:
        from ..process.gc_policy import collecting_nothing

        with collecting_nothing():
            from ..process.start import serve

            serve(settings, signals, replica=os.environ.get(REPLICA_VARIABLE))
    return 0


def _generate(args: argparse.Namespace) -> int:
    from .generate import generate, generate_at, read_prompt

    prompt = read_prompt(args.prompt, model=args.model)
    fields = _sampling_fields(args)
    if args.url is not None:
        return generate_at(args.url, api_key=args.client_key, prompt=prompt, fields=fields)
    return generate(_settings_with_model(args), prompt=prompt, fields=fields)


def _chat(args: argparse.Namespace) -> int:
    from .chat import ChatOptions, chat, chat_at
    from .talk.remote_chat import server_of

    options = ChatOptions(_sampling_fields(args), args.system, args.verbose, args.plain)
    if args.url is not None:
        return chat_at(args.url, options, api_key=args.client_key)
    resolved = resolve_sources(vars(args), os.environ)
    settings = _with_model(resolved.settings)
    changes = {name for name, source in resolved.sources.items() if source.kind == "flag"} - {"model"}
    # A flag of the engine asks for an engine of one's own.
    if not changes and (url := server_of(settings.model_name, port=settings.port, api_key=args.client_key)) is not None:
        print(f"{settings.model_name} runs at {url}, so the model is not loaded again", file=sys.stderr)
        return chat_at(url, options, api_key=args.client_key)
    return chat(settings, options)


def _plan(args: argparse.Namespace) -> int:
    from .plan import plan

    config = _settings_with_model(args).engine_config()
    return plan(config, memory=args.memory, num_ranks=config.tensor_parallel_size)


def _config(args: argparse.Namespace) -> int:
    from .config import report

    return report(resolve_sources(vars(args), os.environ), as_json=args.as_json)


def _doctor(args: argparse.Namespace) -> int:
    from .doctor import doctor

    return doctor(args.model, as_json=args.as_json, builds=args.build)


def _models(args: argparse.Namespace) -> int:
    from .machine.model_table import print_models, print_supported

    return print_supported() if args.supported else print_models(as_json=args.as_json)


def _pull(args: argparse.Namespace) -> int:
    from .machine.pull import pull

    return pull(args.model)


def _rm(args: argparse.Namespace) -> int:
    from .machine.remove import remove

    return remove(args.model, is_sure=args.yes)


def _ps(args: argparse.Namespace) -> int:
    from .machine.running_server import print_servers

    return print_servers(api_key=args.api_key, as_json=args.as_json)


def _simulate(args: argparse.Namespace) -> int:
    from .simulate import run

    return run(_settings(args).engine_config(), args)


def _replay(args: argparse.Namespace) -> int:
    from ...engine.extras.simulation.replay import run

    return run(args.file)


def _plot(args: argparse.Namespace) -> int:
    from ...engine.extras.simulation.plot import run

    return run(args.files, args.output)


def _completion(parser: argparse.ArgumentParser, commands: Any, args: argparse.Namespace) -> int:
    from .completion import script

    print(script(args.shell, parser, commands), end="")
    return 0


def _explain(args: argparse.Namespace) -> int:
    from .explain import run

    return run(args.file, args.id, as_json=args.as_json)


def _top(args: argparse.Namespace) -> int:
    from .top import run

    return run(args.url, api_key=args.api_key, once=args.once)


def _bench(argv: list[str]) -> int:
    homes = {"serve": "...client.bench.cli", "offline": "...engine.extras.bench.offline"}
    if not argv or argv[0] in ("-h", "--help"):
        print(_BENCH_HELP, end="")
        return 0
    if argv[0] not in homes:
        near = difflib.get_close_matches(argv[0], homes, n=1)
        hint = f"; did you mean `splitfuse bench {near[0]}`?" if near else ""
        raise ConfigError(f"bench takes `serve` (a running server) or `offline` (the engine in this process){hint}")
    try:
        module = importlib.import_module(homes[argv[0]], __package__)
    except ModuleNotFoundError as exc:
        raise ConfigError(f"bench {argv[0]} is not in this installation ({exc.name} is missing)") from exc
    if argv[0] == "serve":
        return module.main(argv[1:]) or 0
    with ending_at_ctrl_c():
        return module.main(argv[1:]) or 0


def _settings(args: argparse.Namespace) -> ServerSettings:
    return resolve(vars(args), os.environ)


def _settings_with_model(args: argparse.Namespace) -> ServerSettings:
    return _with_model(_settings(args))


def _with_model(settings: ServerSettings) -> ServerSettings:
    return settings if settings.model is not None else dataclasses.replace(settings, model=default_model())


def _sampling_fields(args: argparse.Namespace) -> dict[str, Any]:
    from ...engine.core.sampling_params import SamplingParams

    fields = {"max_tokens": args.max_tokens, "temperature": args.temperature}
    SamplingParams.from_fields(fields)  # a wrong value is refused before the model is loaded
    return fields


def _read_as(kind: type[int] | type[float]) -> Callable[[str], int | float]:
    def read(text: str) -> int | float:
        try:
            return kind(text)
        except ValueError as exc:
            raise argparse.ArgumentTypeError(f"{text!r} is not {KIND_NAMES[kind]}") from exc

    return read


def _broken_pipe() -> int:
    """The reader of our output, such as `head`, has closed it. What is still buffered must not fail at exit again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def _print_error(exc: Exception) -> None:
    text = " ".join(str(exc).split())
    if not isinstance(exc, SplitfuseError):
        text = f"unexpected {type(exc).__name__}: {text}; --debug shows where"
    print(as_line(f"splitfuse: error: {text}", level=logging.ERROR), file=sys.stderr)
