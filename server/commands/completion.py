"""`splitfuse completion SHELL`: a script that completes commands, flags and the choices of flags."""

import argparse
from collections.abc import Mapping, Sequence

from .settings_sources import choices_of

# For each command its flags, and for each flag its choices, if it has few.
Flags = Mapping[str, Mapping[str, Sequence[str]]]
SHELLS = ("bash", "zsh", "fish")

_BASH = """_splitfuse() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} words
    if ((COMP_CWORD == 1)); then
        words="{commands}"
    else
        case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
        *) case "${{COMP_WORDS[1]}}" in
{flags}
            esac ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    if ((COMP_CWORD > 1)) && [[ $current != -* ]]; then
        COMPREPLY+=($(compgen -f -- "$current"))
    fi
}}
complete -o filenames -F _splitfuse splitfuse
"""


def flags_of(commands: Mapping[str, argparse.ArgumentParser]) -> Flags:
    """Collect the flags of all commands. The commands of `bench` have parsers of their own."""
    from ...client.bench.options import options_parser

    command_flags: dict[str, Mapping[str, Sequence[str]]] = {name: _flags(parser) for name, parser in commands.items()}
    return command_flags | {"bench": {"serve": (), "offline": ()} | _flags(options_parser())}


def _flags(parser: argparse.ArgumentParser) -> dict[str, Sequence[str]]:
    return {flag: choices_of(action.dest) for action in parser._actions for flag in action.option_strings}


def script(shell: str, flags: Flags) -> str:
    """Return the script for a shell, to be read by `source <(splitfuse completion bash)`."""
    if shell == "fish":
        return _fish(flags)
    return ("autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else "") + _bash(flags)


def _bash(flags: Flags) -> str:
    values = [
        f'        "{command} {flag}") words="{" ".join(words)}" ;;'
        for command, known in flags.items()
        for flag, words in known.items()
        if words
    ]
    lines = [f'            {command}) words="{" ".join(known)}" ;;' for command, known in flags.items()]
    return _BASH.format(commands=" ".join(flags), values="\n".join(values), flags="\n".join(lines))


def _fish(flags: Flags) -> str:
    lines = [f"complete -c splitfuse -f -n __fish_use_subcommand -a '{' '.join(flags)}'"]
    for command, known in flags.items():
        seen = f"complete -c splitfuse -n '__fish_seen_subcommand_from {command}'"
        for flag, words in known.items():
            name = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            lines.append(f"{seen} {name}" + (f" -x -a '{' '.join(words)}'" if words else ""))
    return "\n".join([*lines, ""])
