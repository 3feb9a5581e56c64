"""Options of other servers and of vLLM's LLM(): translated to ours, ignored if harmless, or refused with a reason.

foreign_options.json has a row for the options that are alike; vLLM's names come from 0.11. Knows names and values as
text, and nothing of a setting's effect.
"""

import difflib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignOption:
    """Option of another server. `words` replace it; without them, `harmless` values (None: all) are ignored, and others
    are refused with `why`.
    """

    takes_value: bool = True
    words: Sequence[str] | None = None  # our words before the value, if there is one
    harmless: Sequence[str] | None = ()
    why: str = ""


_TABLE: Any = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
FOREIGN_OPTIONS: Mapping[str, ForeignOption] = {
    flag: ForeignOption(**{name: value for name, value in row.items() if name != "flags"})
    for row in _TABLE
    for flag in row["flags"].split()
}
# Other servers' values of our own flags, and our values; None drops the flag, because the model's files decide.
_VALUES: dict[str, dict[str, str | None]] = {
    "--dtype": {"half": "float16", "float": "float32"},
    "--kv-cache-dtype": {"fp8_e4m3": "fp8", "int8_per_token_head": "int8"},
    "--load-format": {"gguf": "auto"},
    "--reasoning-parser": {"deepseek-r1": "deepseek_r1"},
    "--quantization": dict.fromkeys(
        ("awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "gguf", "none"), None
    ),
}


def translated(argv: Sequence[str]) -> list[str]:
    """Translate a command line with other servers' flags into our flags. Like vLLM, take `--max_num_seqs` too.

    Raises ConfigError for refused options.
    """
    words = iter(argv)
    translation: list[str] = []
    for word in words:
        if word == "--":
            return [*translation, word, *words]
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-") if flag.startswith("--") else flag
        option = FOREIGN_OPTIONS.get(flag)
        if option is None and flag not in _VALUES:
            translation.append(flag + equals + value if flag.startswith("--") else word)
            continue
        values = [value] if equals else list(islice(words, option is None or option.takes_value))
        if option is None:
            translation += _with_our_value(flag, *values)
        elif option.words:
            translation += _with_our_value(*option.words, *values)
        elif option.words is not None:
            translation += values
        elif not _has_no_effect(option, values):
            raise ConfigError(f"{' '.join([flag, *values])} is not taken: {option.why}")
    return translation


def supported_keywords(keywords: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Translate keywords of vLLM's LLM() into ours (`known`). Raises ConfigError for unknown and refused ones."""
    ours: dict[str, Any] = {}
    for name, value in keywords.items():
        is_off = value is False and _flag(f"no_{name}") in FOREIGN_OPTIONS
        flag = _flag(f"no_{name}" if is_off else name)
        option = FOREIGN_OPTIONS.get(flag)
        if name in known:
            if not isinstance(value, str) or not value:
                ours[name] = value
            elif words := _with_our_value(flag, value):
                ours[name] = words[1]
        elif option is None:
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(f"{name} is not known{f'; did you mean {near[0]}?' if near else ''}")
        elif option.words:
            ours |= {own_name: value for own_name in known if _flag(own_name) == option.words[0]}
        elif (is_off or value not in (None, False)) and not _has_no_effect(option, [str(value)]):
            raise ConfigError(f"{name}={value!r} is not taken: {option.why}")
    return ours


def _has_no_effect(option: ForeignOption, values: Sequence[str]) -> bool:
    return option.harmless is None or bool({*values} & {*option.harmless})


def _with_our_value(flag: str, value: str = "", /) -> list[str]:
    ours = _VALUES.get(flag, {}).get(value, value)
    return [] if ours is None else [flag, *[ours] * bool(value)]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
