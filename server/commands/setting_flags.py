"""Flags of the settings, and the pages of --help that show them. Never knows what a setting means."""

import argparse
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ...engine.config.setting import ENV_PREFIX, Setting, settings_of
from ...engine.errors import ConfigError
from ..settings import Settings

HELP_WORDS = ("-h", "--help")
COMMON = "common"  # page of --help without a topic
ALL = "all"
# How --help groups them; what stands in none is the server's.
SECTIONS: dict[str, str] = {
    "model": "served_model_name revision device dtype load_format model_impl quantization "
    "quantization_activations speculative_config generation_config escape_special_tokens "
    "override_generation_config tokenizer chat_template exact pooler_config embedding_model seed num_threads "
    "enforce_eager async_scheduling tensor_parallel_size tensor_parallel_slices thinking_budget thinking_message",
    "memory": "max_model_len rope_scaling kv_cache_memory_bytes kv_cache_dtype gpu_memory_utilization num_kv_blocks "
    "block_size swap_space enable_prefix_caching prefix_cache_dir prefix_cache_disk_bytes",
    "scheduling": "max_num_seqs max_num_batched_tokens long_prefill_token_threshold batching_policy scheduling_policy "
    "tenant_weights max_seqs_per_key preemption_mode target_itl_ms ttft_ms itl_ms max_queue_size "
    "max_queue_chars max_queue_seconds",
    "adapters": "enable_lora lora_modules max_loras max_lora_rank lora_dir",
    "server": "",
    "results": "result_ttl results results_sync results_lease results_url id_tag max_results max_unfinished_per_key "
    "max_result_bytes_per_key max_result_bytes max_file_bytes max_total_file_bytes file_ttl max_batch_lines "
    "max_batch_requests",
    "security": "api_key api_key_file admin_key admin_key_file allowed_hosts allowed_origins weights_dir",
    "logging": "request_log log_format log_steps record metrics_prefix",
    "compatibility": "tool_call_parser reasoning_parser",
}
# Settings that people set, with texts that fit one line beside the flag; other pages have the whole texts.
_COMMON_TEXTS = {
    "served_model_name": "name in requests and answers",
    "device": "where the model runs",
    "dtype": "of weights and activations",
    "quantization": "round weights at load",
    "speculative_config": "ngram, suffix, a draft model, or JSON",
    "chat_template": "file, instead of the model's own",
    "num_threads": "CPU threads of the model",
    "max_model_len": "longest prompt plus output, in tokens",
    "kv_cache_memory_bytes": "memory for keys and values, as 4GiB",
    "max_num_seqs": "most sequences in one step",
    "target_itl_ms": "longest gap between tokens to aim at",
    "host": "address to listen on",
    "port": "port to listen on; 0 = any free one",
    "api_key": "key that requests must bring",
    "results": "memory, FILE or postgresql://…",
    "log_format": "form of the log",
}
_METAVARS: dict[type, str] = {int: "N", float: "NUMBER", str: "TEXT", tuple: "TEXT", dict: "JSON"}
_FILES = ("record", "chat_template", "tokenizer")
_LONGEST_CHOICES = 34  # longer lists of choices stand in the text instead
_SOURCES = "A flag is a variable, in [], and a key of the --config file too. vLLM's other flags are taken."
_SETTINGS = settings_of(Settings)


def section_of(name: str) -> str:
    """Return the section of --help that holds the setting of this name."""
    return next((section for section, names in SECTIONS.items() if name in names.split()), "server")


def _pages(names: Iterable[str]) -> str:
    """Return a line that names the --help pages of these settings."""
    sections = {section_of(name) for name in names if name != "model"}
    return f"More settings: --help {ALL}, or one page of {', '.join(filter(sections.__contains__, SECTIONS))}."


def help_words(words: list[str]) -> list[str]:
    """Translate `help COMMAND [PAGE]` to `COMMAND --help [PAGE]`; other words stay."""
    if words[:1] != ["help"]:
        return words
    command, page = words[1:2], words[2:]
    return [*command, *page, "--help"] if command == ["bench"] else [*command, "--help", *page]


def help_topic(words: Sequence[str]) -> tuple[list[str], str]:
    """Take the topic out of `--help TOPIC`: the words without it, and the topic. Raises ConfigError if it is none."""
    for index, word in enumerate(words):
        flag, _, value = word.partition("=")
        if flag not in HELP_WORDS:
            continue
        following = [value] if value else words[index + 1 : index + 2]
        topic = following[0] if following and not following[0].startswith("-") else COMMON
        if topic not in (COMMON, ALL, *SECTIONS):
            raise ConfigError(f"--help {topic}: no such page; there are {', '.join([ALL, *SECTIONS])}")
        return [*words[:index], flag], topic
    return list(words), ALL


def add_flags(
    parser: argparse.ArgumentParser, names: Iterable[str], *, topic: str = ALL, common: Collection[str] = SECTIONS
) -> None:
    """Add one flag per setting. --help has the flags of the topic's page, the common page those of `common` sections.

    A flag that is not given leaves no trace, so that the other sources count.
    """
    names = tuple(names)
    page = _Page(parser, topic, common)
    parser.epilog = _pages(names) if topic == COMMON else _SOURCES
    parser.add_argument("--config", metavar="FILE", help=f"YAML file with settings [{ENV_PREFIX}CONFIG]")
    for setting in (_SETTINGS[name] for name in names if name != "model"):  # a positional argument of the command
        group, text = page.place(setting)
        group.add_argument(setting.flag, dest=setting.name, default=argparse.SUPPRESS, help=text, **_value(setting))


class _Page:
    """One page of --help: the groups of flags, and the text of each flag."""

    def __init__(self, parser: argparse.ArgumentParser, topic: str, common: Collection[str]) -> None:
        self._parser = parser
        self._topic = topic
        self._common = common
        titles = ("settings",) if topic == COMMON else SECTIONS if topic == ALL else (topic,)
        self._groups = {title: parser.add_argument_group(title) for title in titles}

    def place(self, setting: Setting) -> tuple[Any, str]:
        """Return the group of the flag and its text; hidden if the flag stands on another page."""
        section = section_of(setting.name)
        if self._topic == COMMON:
            if setting.name in _COMMON_TEXTS and section in self._common:
                return self._groups["settings"], _short_help(setting)
        elif section in self._groups:
            return self._groups[section], _help(setting)
        return self._parser, argparse.SUPPRESS


def _value(setting: Setting) -> dict[str, Any]:
    """Return argparse's options for the value."""
    if setting.kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if setting.name == "lora_modules":
        return {"action": "extend", "nargs": "+", "metavar": "NAME=PATH"}
    if setting.kind is tuple:
        return {"action": "append", "metavar": "TEXT"}
    if setting.choices:
        return {"metavar": "|".join(setting.choices) if _choices_are_short(setting) else "NAME"}
    if "_bytes" in setting.name:
        return {"metavar": "SIZE"}
    if setting.word_key:
        return {"metavar": "NAME|JSON"}
    if setting.words:
        return {"metavar": "|".join([*setting.words, _METAVARS[setting.kind]])}
    is_file = setting.name.endswith("_file") or setting.name in _FILES
    return {"metavar": "FILE" if is_file else _METAVARS[setting.kind]}


def _choices_are_short(setting: Setting) -> bool:
    return len("|".join(setting.choices)) <= _LONGEST_CHOICES


def _short_help(setting: Setting) -> str:
    return (_COMMON_TEXTS[setting.name] + _default(setting, ", default ")).replace("%", "%%")


def _help(setting: Setting) -> str:
    """Return the text of a page; a default stands in [] behind the variable."""
    choices = f" ({', '.join(setting.choices)})" if setting.choices and not _choices_are_short(setting) else ""
    return f"{setting.help}{choices} [{setting.variable}{_default(setting, ', default ')}]".replace("%", "%%")


def _default(setting: Setting, beginning: str) -> str:
    return "" if setting.default in (None, (), "") else f"{beginning}{setting.default}"
