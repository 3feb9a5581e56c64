"""Suggestions: commands that a user probably wanted, by the words of the command line."""

import difflib
import shlex
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence

from ....engine.config.foreign_options import FOREIGN_OPTIONS
from ....engine.config.named_models import NAMES
from ....engine.errors import ConfigError

_OWN_FLAGS = ("--help", "--version", "--debug")  # flags without a command
# Commands of ollama, vLLM, llama.cpp and other tools: the first known command here is suggested.
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
# Commands that have no counterpart, and what to do.
_INSTEAD = {
    "version": "did you mean `splitfuse --version`?",
    "stop": "`splitfuse serve` ends with Ctrl-C, or with SIGTERM; `splitfuse ps` lists what runs",
    "logs": "a server logs to its own terminal; under systemd: journalctl -u splitfuse",
    "run-batch": "start `splitfuse serve --results FILE`, then POST /v1/batches",
}


def with_prompt(model: str, unknown: Sequence[str]) -> str:
    """Return the arguments with which `generate` continues what stands behind MODEL, or what stands in its place."""
    if is_model(model):
        return f"{model} -p {shlex.quote(' '.join(unknown))}"
    return f"-p {shlex.quote(' '.join([model, *unknown]))}"


def is_model(word: str) -> bool:
    """True if a word of the command line can only be a model."""
    return word in NAMES or word.lower().endswith(".gguf") or "/" in word


def check_command(argv: Sequence[str], commands: Mapping[str, ArgumentParser]) -> None:
    """Raise ConfigError that suggests a command for an unknown first word, if one is likely."""
    word = argv[0]
    flag = word.partition("=")[0]
    of_serve = {flag for action in commands["serve"]._actions[1:] for flag in action.option_strings}
    if flag in of_serve or flag in FOREIGN_OPTIONS:
        raise ConfigError(f"{flag} goes with a command: splitfuse serve {' '.join(argv)}")
    known = [*commands, "bench"]
    of_others = [name for name in _OF_OTHERS.get(word, ()) if name in known]
    near = of_others or difflib.get_close_matches(word, known if word[:1] != "-" else (), n=1, cutoff=0.7)
    if word in _INSTEAD:
        raise ConfigError(f"{word} is not a command; {_INSTEAD[word]}")
    suggested = f"serve {word}" if is_model(word) else next(iter(near), None)
    if suggested is not None:
        raise ConfigError(f"{word} is not a command; did you mean `splitfuse {suggested}`?")
    near = difflib.get_close_matches(flag, _OWN_FLAGS, n=1) if flag.startswith("--") and flag not in _OWN_FLAGS else []
    if near:
        raise ConfigError(f"{flag} is not known to `splitfuse`; did you mean {near[0]}?")
