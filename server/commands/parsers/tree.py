"""Tree of parsers: the commands, their flags and texts, and the handler of each."""

import argparse
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ....engine.config.named_models import DEMO, SMOLLM2
from ... import package_version
from .. import handlers
from ..setting_flags import ALL, SECTIONS, add_flags
from ..settings_sources import ALL_FIELDS, ENGINE_FIELDS
from .parser import HelpFormatter, Parser

_MODEL_HELP = (
    f"short name (`splitfuse models`), Hugging Face id, folder, .gguf file, {SMOLLM2}, or {DEMO}; none = {SMOLLM2} "
    f"if installed, else {DEMO}"
)


def build_parser(command: Sequence[str], topic: str = ALL) -> tuple[Parser, dict[str, Parser]]:
    parser = Parser(prog="splitfuse", description="LLM inference server. `splitfuse serve` serves a small model.")
    parser.add_argument("--version", action="version", version=f"splitfuse {package_version()}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks and the log")

    def show_help(_args: argparse.Namespace) -> int:
        parser.print_help()
        return 0

    parser.set_defaults(run=show_help)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    command_of = functools.partial(_command, commands, topic=topic)
    made = {
        "serve": command_of("serve", handlers.serve, "serve a model over HTTP", ALL_FIELDS),
        "generate": command_of(
            "generate", handlers.generate, "continue a prompt, in this process or at a URL", ENGINE_FIELDS
        ),
        "chat": command_of("chat", handlers.chat, "talk to a model, in this process or at a URL", ENGINE_FIELDS),
        "embed": command_of("embed", handlers.embed, "embed each line of a file, in this process", ENGINE_FIELDS),
        "plan": command_of("plan", handlers.plan, "say what fits into memory, without loading it", ENGINE_FIELDS),
        "config": command_of("config", handlers.config, "print each setting in force, and its source", ALL_FIELDS),
        "doctor": command_of("doctor", handlers.doctor, "name missing parts of this machine, and their fixes", ()),
    }
    made |= {"verify": _add_verify(commands, topic)} | _add_machine(commands)
    made["help"] = commands.add_parser("help", help="print a command's help: help COMMAND [PAGE]")
    commands.add_parser("bench", help="measure: `bench serve` a running server, `bench offline` the engine")
    made |= _add_rehearsals(commands, command, topic)
    made["help"].add_argument("topic", nargs="?", choices=tuple(commands.choices), metavar="COMMAND")
    made["doctor"].usage = "splitfuse doctor [MODEL] [--json] [--build]"
    made["doctor"].add_argument("--json", action="store_true", dest="as_json", help="print a JSON list of the findings")
    made["doctor"].add_argument("--build", action="store_true", help="build the CPU library now, if there is none yet")
    made["config"].add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")
    made["config"].add_argument("--resolved", action="store_true", help="decide what the model and the machine decide")
    made["plan"].add_argument("--memory", metavar="SIZE", help="as 24GB; of the GPU, or free on the machine")
    made["generate"].add_argument("-p", "--prompt", help="text to continue; - or nothing: standard input")
    made["embed"].add_argument("-i", "--input", default="-", metavar="FILE", help="texts, one per line; nothing: stdin")
    made["embed"].add_argument("-o", "--output", default="-", metavar="FILE", help="JSON lines, or FILE.npy, a matrix")
    made["embed"].add_argument("--dimensions", type=int, metavar="N", help="keep the first dimensions of an embedding")
    made["embed"].add_argument("--truncate", action="store_true", help="cut lines that are too long for the model")
    for name in ("generate", "chat", "fork"):
        made[name].add_argument("-n", "--max-tokens", type=int, metavar="N", help="most tokens of an answer")
        made[name].add_argument("--temperature", type=float, metavar="NUMBER", help="0 = always the likeliest token")
    for name in ("generate", "chat", "verify"):
        _add_server_flags(made[name], "a running server, as http://localhost:8000, in place of a model here")
    for name in ("agents", "fork", "results", "load", "unload"):
        _add_server_flags(made[name], "the server, as http://localhost:8000; nothing: the one that runs here")
    made["chat"].add_argument("--system", metavar="TEXT", help="system message")
    made["chat"].add_argument("--verbose", action="store_true", help="print the speed after each answer")
    made["chat"].add_argument("--plain", action="store_true", help="print answers as they come, without Markdown")
    return parser, made


def _add_verify(commands: Any, topic: str) -> Parser:
    text = "check an answer's receipt, with a model in this process or at a URL"
    parser: Parser = commands.add_parser(
        "verify", help=text, description=text, allow_abbrev=False, formatter_class=HelpFormatter
    )
    parser.usage = "splitfuse verify RECEIPT [flags]"
    parser.add_argument("file", metavar="RECEIPT", help="JSON file with a receipt or with its answer; -: stdin")
    parser.add_argument("--model", metavar="MODEL", help=_MODEL_HELP)
    parser.add_argument("--json", action="store_true", dest="as_json", help="print the verdict as JSON")
    add_flags(parser, ENGINE_FIELDS, topic=topic, common=("model", "memory"))
    parser.set_defaults(run=handlers.verify)
    return parser


def _add_machine(commands: Any) -> dict[str, Parser]:
    """The commands about models on disk and running servers."""
    made: dict[str, Parser] = {}
    for name, run, text in (
        ("models", handlers.models, "list models on this machine, and short names of others"),
        ("inspect", handlers.inspect, "say what a model is, and if it is served, before it is fetched"),
        ("pull", handlers.pull, "fetch a model from the Hugging Face hub"),
        ("rm", handlers.rm, "remove a model that was fetched"),
        ("ps", handlers.ps, "list your servers on this machine"),
        ("bisect", handlers.bisect, "find the first token and layer at which two models or servers differ"),
        ("fork", handlers.fork, "continue an answer of a running server from one of its tokens"),
        ("agents", handlers.agents, "print the settings that let a coding agent use a running server"),
        ("results", handlers.results, "copy the results file of a running server: results backup FILE"),
        ("load", handlers.load, "load a model of a running server of several"),
        ("unload", handlers.unload, "let a model of a running server leave memory once it has no work"),
    ):
        made[name] = commands.add_parser(
            name, help=text, description=text, allow_abbrev=False, formatter_class=HelpFormatter
        )
        made[name].set_defaults(run=run)
    made["agents"].usage = "splitfuse agents [NAME] [--url URL] [--api-key KEY]"
    made["agents"].add_argument("name", nargs="?", metavar="NAME", help="an agent, as codex; nothing: a list of them")
    made["results"].usage = "splitfuse results backup FILE [--url URL] [--api-key KEY]"
    made["results"].add_argument("action", choices=("backup",), metavar="backup", help="the one that there is")
    made["results"].add_argument("file", metavar="FILE", help="new file, on the server's machine")
    _add_bisect_flags(made["bisect"])
    _add_fork_flags(made["fork"])
    for name in ("load", "unload"):
        made[name].usage = f"splitfuse {name} NAME [--url URL] [--api-key KEY]"
        made[name].add_argument("name", metavar="NAME", help="the model, as /v1/models has it")
    for name in ("inspect", "pull", "rm"):
        made[name].add_argument("model", metavar="MODEL", help="a short name, OWNER/NAME, or OWNER/NAME:FILE.gguf")
    made["models"].add_argument("--supported", action="store_true", help="the families that can be served")
    for name in ("bisect", "fork", "inspect", "models", "ps"):
        made[name].add_argument("--json", action="store_true", dest="as_json", help="print JSON")
    made["rm"].add_argument("-y", "--yes", action="store_true", help="do not ask")
    made["ps"].add_argument("--api-key", metavar="KEY", help="if the servers have keys; or SPLITFUSE_API_KEY")
    return made


def _add_bisect_flags(parser: Parser) -> None:
    parser.usage = "splitfuse bisect A B [flags]"
    for name in ("A", "B"):
        own = "what serve takes, or a server's URL; A also a FILE.jsonl of answers"
        parser.add_argument(name.lower(), metavar=name, help=own)
        text = f"settings of {name}, as quantization=int8 or adapter=FOLDER (of a server: its name)"
        parser.add_argument(f"--settings-{name.lower()}", nargs="+", default=[], metavar="NAME=VALUE", help=text)
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="a prompt a line; default eight short ones")
    parser.add_argument("-n", "--max-tokens", type=int, default=64, metavar="N", help="of an answer, default 64")
    text = "difference of a layer's output that rounding may make, as a share of its length; default 0.02"
    parser.add_argument("--tolerance", type=float, default=0.02, metavar="SHARE", help=text)
    _add_server_flags(parser)


def _add_fork_flags(parser: Parser) -> None:
    parser.usage = "splitfuse fork SEQ_ID [flags]"
    parser.add_argument("seq_id", metavar="SEQ_ID", help="id of an answer that the server keeps")
    parser.add_argument("--at", type=int, metavar="K", help="tokens of the answer to keep; nothing: all")
    parser.add_argument("--output", type=int, default=0, metavar="I", help="number of the output, of several")
    parser.add_argument("--append-text", metavar="TEXT", help="what follows the kept tokens")
    parser.add_argument("--seed", type=int, metavar="N", help="another seed draws other tokens")


def _add_server_flags(parser: Parser, url: str | None = None) -> None:
    """Add --api-key, and --url with this help."""
    if url is not None:
        parser.add_argument("--url", help=url)
    text = "if that server has keys, for some calls an admin's; or SPLITFUSE_API_KEY"
    parser.add_argument("--api-key", dest="client_key", metavar="KEY", help=text)


def _add_rehearsals(commands: Any, command: Sequence[str], topic: str) -> dict[str, Parser]:
    """The commands that need no model."""
    made: dict[str, Parser] = {}
    for name, run, text in (
        ("simulate", handlers.simulate, "run the scheduler over a load, without a model"),
        ("replay", handlers.replay, "decide a recorded run again, and compare the decisions"),
        ("plot", handlers.plot, "draw recordings, simulations and step logs side by side"),
    ):
        made[name] = commands.add_parser(
            name, help=text, description=text, allow_abbrev=False, formatter_class=HelpFormatter
        )
        made[name].set_defaults(run=run)
    recording: dict[str, Any] = {"type": Path, "metavar": "FILE", "help": "what `--record FILE` wrote"}
    made["replay"].add_argument("file", **recording)
    made["plot"].add_argument("files", nargs="+", **recording)
    picture: dict[str, Any] = {"type": Path, "default": Path("splitfuse.png"), "metavar": "PNG"}
    made["plot"].add_argument("-o", "--output", help="picture to write, default splitfuse.png", **picture)
    if "simulate" in command:  # its flags stand with the code that reads them
        from ....engine.extras.simulation.recording import DECIDING_FIELDS
        from ..simulate import add_arguments

        add_arguments(made["simulate"])
        made["simulate"].usage = "splitfuse simulate [flags]"
        add_flags(made["simulate"], (*DECIDING_FIELDS, "num_kv_blocks", "record"), topic=topic, common=())
    return made


class _Models(argparse.Action):
    """Action of several models: the first is `model`, all are `models`."""

    def __call__(self, _parser: Any, namespace: Any, values: Any, _option: Any = None) -> None:
        namespace.model = values[0] if values else None
        if values:
            namespace.models = list(values)


def _command(
    commands: Any, name: str, run: Callable[..., int], text: str, fields: Sequence[str], *, topic: str
) -> Parser:
    parser: Parser = commands.add_parser(
        name,
        help=text,
        description=text,
        allow_abbrev=False,
        formatter_class=HelpFormatter,
        usage=f"splitfuse {name} [MODEL]" + " [flags]" * bool(fields),
    )
    if name == "serve" and "models" in fields:
        parser.usage = "splitfuse serve [MODEL …] [flags]"
        parser.add_argument("model", nargs="*", action=_Models, metavar="MODEL", help=_MODEL_HELP)
    else:
        parser.add_argument("model", nargs="?", metavar="MODEL", help=_MODEL_HELP)
    if fields:
        add_flags(parser, fields, topic=topic, common=SECTIONS if fields == ALL_FIELDS else ("model", "memory"))
    parser.set_defaults(run=run)
    return parser
