"""Options of other servers and of vLLM's LLM(): translated to ours, ignored if harmless, or refused with a reason.

One table serves both. Knows names and values as text, and nothing of a setting's effect. vLLM's names come from
0.11.
"""

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignOption:
    """Option of another server. `words` replace it; without them, `harmless` values (None: all) are ignored, and others
    are refused with `why`.
    """

    takes_value: bool = True
    words: tuple[str, ...] | None = None  # our words before the value, if there is one
    harmless: tuple[str, ...] | None = ()
    why: str = ""


_ONE_MACHINE = "--tensor-parallel-size N shares a model on one machine, --replicas N starts several servers"
_POOLING = "leave it out: the files say if a model pools; for any other model there is --pooler-config"
_CONFIG = "a model is what its config.json says; edit that in a copy of its folder"
_REVISION = "fetch it with `hf download OWNER/NAME --revision NAME`, and give the folder as MODEL"

_ALIASES: dict[str, tuple[str, ...]] = {
    "--model": (),  # replaced by the value alone
    "-q": ("--quantization",),
    **dict.fromkeys(("-tp", "--tp", "--tp-size"), ("--tensor-parallel-size",)),
    "--num-gpu-blocks-override": ("--num-kv-blocks",),
}
_SWITCH_ALIASES = {
    "--enable-log-requests": "--request-log",
    "--no-enable-log-requests": "--no-request-log",
    "--disable-log-requests": "--no-request-log",
    "--no-disable-log-requests": "--request-log",
    "--disable-uvicorn-access-log": "--no-request-log",
}
_SWITCHES_WITHOUT_EFFECT = """
--disable-cascade-attn --disable-custom-all-reduce --disable-frontend-multiprocessing --disable-log-stats
--enable-auto-tool-choice --enable-chunked-prefill --enable-prompt-tokens-details --enable-request-id-headers
--enable-sleep-mode --no-enable-log-outputs --no-trust-remote-code --use-tqdm-on-load
-cb --cont-batching --jinja --no-mmap
"""
_WITHOUT_EFFECT = """
-O --allowed-headers --allowed-methods --chat-template-content-format --compilation-config --cuda-graph-sizes
--guided-decoding-backend --limit-mm-per-prompt --max-log-len --max-parallel-loading-workers --max-seq-len-to-capture
--num-scheduler-steps --prefix-caching-hash-algo --safetensors-load-strategy --structured-outputs-config
--uvicorn-log-level
"""
_SWITCHES_REFUSED = {
    _CONFIG: "--disable-sliding-window",
    "long prompts are always split over steps": "--no-enable-chunked-prefill",
    "code of a model repository is never run; server/docs/models.md lists what is built in": "--trust-remote-code",
}
# Harmless values, and the reason why others are refused.
_REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "--config-format": (("auto", "hf"), _CONFIG),
    "--convert": (("auto", "none"), _POOLING),
    "--cpu-offload-gb": (("0", "0.0"), "weights stay on the device; --quantization int4 makes them smaller"),
    "--distributed-executor-backend": (("mp", "uni"), _ONE_MACHINE),
    "--max-long-partial-prefills": (("1",), "see --long-prefill-token-threshold"),
    "--max-num-partial-prefills": (("1",), "see --long-prefill-token-threshold"),
    "--logprobs-mode": (("raw_logprobs",), "logprobs are the model's own, before penalties, masks and temperature"),
    "--max-logprobs": (("20",), "requests get at most 20"),
    "--response-role": (("assistant",), "answers are the assistant's"),
    "--runner": (("auto", "generate"), _POOLING),
    "--task": (("auto", "generate"), _POOLING),
    "--tokenizer-mode": (("auto", "fast", "hf"), "the tokenizer is the tokenizer.json in the model's folder"),
    **dict.fromkeys(("--code-revision", "--tokenizer-revision"), (("main",), _REVISION)),
    **dict.fromkeys(
        ("--api-server-count", "-asc", "--data-parallel-size", "-dp", "--data-parallel-size-local", "-dpl"),
        (("1",), _ONE_MACHINE),
    ),
    **dict.fromkeys(
        ("--pipeline-parallel-size", "-pp", "--decode-context-parallel-size", "-dcp"),
        (("1",), f"{_ONE_MACHINE}; --quantization int8|int4 makes a model fit"),
    ),
}
_ALWAYS_REFUSED = {
    "the server speaks HTTP on --host and --port; put a proxy such as nginx or Caddy before it": "--middleware "
    "--ssl-ca-certs",
    f"{_CONFIG}; rope_scaling alone has a flag: --rope-scaling": "--hf-overrides --rope-theta",
    "classes of other servers cannot be loaded": "--logits-processors --tool-parser-plugin",
    "set HF_TOKEN in the environment": "--hf-token",
    "set HF_HOME in the environment": "--download-dir",
    "see --log-format": "--log-config-file",
    "kernels are chosen by the shapes of a step": "--attention-backend",
}
# Options of SGLang, TGI or llama.cpp by their name here.
_ELSEWHERE = {
    "MODEL, without a flag": "--model-path --model-id -m -hf --hf-repo",
    "--max-model-len": "--context-length --max-total-tokens --max-input-length --max-input-tokens -c --ctx-size",
    "--max-num-seqs": "--max-running-requests --max-concurrent-requests -np --parallel",
    "--max-num-batched-tokens": "--chunked-prefill-size --max-batch-prefill-tokens -b --batch-size",
    "--gpu-memory-utilization": "--mem-fraction-static --cuda-memory-fraction",
    "--num-threads": "-t --threads",
    "--device cpu, or nothing: a GPU takes the whole model": "-ngl --n-gpu-layers --gpu-layers",
    "--served-model-name": "-a --alias",
    "--max-loras": "--max-cpu-loras",
    "--thinking-budget": "--reasoning-budget",
    "--thinking-message": "--reasoning-budget-message",
    "--speculative-config": "--speculative-model --num-speculative-tokens",
    "--host": "--hostname",
    "--pooler-config": "--override-pooler-config",
    "--replicas": "--dp --dp-size",
    "--tensor-parallel-size": "--num-shard",
}


def _table() -> Iterator[tuple[str, ForeignOption]]:
    for flag, words in _ALIASES.items():
        yield flag, ForeignOption(words=words)
    for flag, word in _SWITCH_ALIASES.items():
        yield flag, ForeignOption(takes_value=False, words=(word,))
    for flag in _SWITCHES_WITHOUT_EFFECT.split():
        yield flag, ForeignOption(takes_value=False, harmless=None)
    for flag in _WITHOUT_EFFECT.split():
        yield flag, ForeignOption(harmless=None)
    for why, flags in _SWITCHES_REFUSED.items():
        yield from ((flag, ForeignOption(takes_value=False, why=why)) for flag in flags.split())
    for flag, (harmless, why) in _REFUSED.items():
        yield flag, ForeignOption(harmless=harmless, why=why)
    for why, flags in _ALWAYS_REFUSED.items():
        yield from ((flag, ForeignOption(why=why)) for flag in flags.split())
    for ours, flags in _ELSEWHERE.items():
        yield from ((flag, ForeignOption(why=f"here it is {ours}")) for flag in flags.split())


FOREIGN_OPTIONS: Mapping[str, ForeignOption] = dict(_table())
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
