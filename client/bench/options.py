"""Command line of `splitfuse bench serve`: flags, defaults, limits. The flags are `vllm bench serve`'s."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from .latency import KINDS
from .workload import FIRST_TOKEN_ID

FALLBACK_VOCAB_SIZE = 1000  # used if neither the user nor the server names one
N = TypeVar("N", int, float)
ENDPOINTS = ("/v1/completions", "/v1/chat/completions")
_BACKENDS = {  # path of the API for each of vLLM's backend names
    **dict.fromkeys(("openai", "vllm", "sglang", "tgi-openai", "openai-completions"), ENDPOINTS[0]),
    "openai-chat": ENDPOINTS[1],
}
_DEFAULT_PORT = 8000
_SAVED = Path("splitfuse-bench.json")  # default file of --save-result


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Options of a run, named like the flags. None leaves the value to the server or the trace."""

    base_url: str | None
    endpoint: str
    model: str | None
    api_key: str | None
    num_prompts: int | None
    random_input_len: int
    random_output_len: int
    random_range_ratio: float
    request_rate: float | None
    burstiness: float
    max_concurrency: int | None
    workers: int
    share: tuple[int, int]
    trace: Path | None
    scale: float
    stretch: float
    seed: int
    temperature: float
    ignore_eos: bool
    text: bool
    vocab_size: int | None
    goodput: dict[str, float]
    percentile_metrics: Sequence[str]
    metric_percentiles: Sequence[float]
    save_result: Path | None

    @property
    def as_text(self) -> bool:
        """True if prompts are words: chat takes no token ids."""
        return self.text or self.endpoint.endswith("/chat/completions")


class OptionsParser(argparse.ArgumentParser):
    """Argument parser whose complaints are one line, and end the process."""

    def error(self, message: str) -> NoReturn:
        """Print the line. Exit with 2."""
        self.exit(2, f"splitfuse: error: {message} (see `{self.prog} --help`)\n")


Parser = type[argparse.ArgumentParser]


def parse_options(argv: Sequence[str] | None, *, parser_class: Parser = OptionsParser) -> LoadOptions:
    """Return the options of a command line. A parser of `parser_class` answers a wrong one."""
    values = vars(options_parser(parser_class).parse_args(argv))
    host, port, backend = (values.pop(name) for name in ("host", "port", "backend"))
    folder, file = values.pop("result_dir"), values.pop("result_filename")
    for name in ("dataset_name", "ignored"):
        values.pop(name)
    if values["base_url"] is None and (host or port):
        values["base_url"] = f"http://{host or '127.0.0.1'}:{port or _DEFAULT_PORT}"
    values["endpoint"] = values["endpoint"] or _BACKENDS[backend]
    if folder or file:
        values["save_result"] = (folder or Path()) / (file or values["save_result"] or _SAVED)
    return LoadOptions(**values | {"goodput": dict(values["goodput"])})


def options_parser(parser_class: Parser = OptionsParser) -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    parser = parser_class(
        prog="splitfuse bench serve",
        usage="%(prog)s [flags]",
        description="Put an OpenAI-compatible server under load; names and formulas are vllm bench serve's.",
        allow_abbrev=False,
    )
    sections = {"server": _target_flags, "load": _load_flags, "pace": _pace_flags, "report": _report_flags}
    for title, flags in sections.items():
        flags(parser.add_argument_group(title).add_argument)
    return parser


def _target_flags(add: Callable[..., Any]) -> None:
    add("--base-url", metavar="URL", help="default: SPLITFUSE_BASE_URL, or http://127.0.0.1:8000")
    add("--host", metavar="HOST", help="with --port instead of a URL; default 127.0.0.1")
    add("--port", type=_count, metavar="PORT", help=f"default {_DEFAULT_PORT}")
    add("--backend", choices=_BACKENDS, default="openai", metavar="API", help=f"{', '.join(_BACKENDS)}; default openai")
    add("--endpoint", choices=ENDPOINTS, metavar="PATH", help=f"{' or '.join(ENDPOINTS)}; default: the backend's")
    add("--model", metavar="NAME", help="default: the server's model")
    add("--api-key", metavar="KEY", help="default: SPLITFUSE_API_KEY")
    add("--temperature", type=float, default=0.0, metavar="T", help="default 0, greedy")
    add("--ignore-eos", action="store_true", help="generate the whole output length")


def _load_flags(add: Callable[..., Any]) -> None:
    add("--dataset-name", type=_dataset, default="random", metavar="NAME", help="random, or give --trace FILE")
    add("--num-prompts", type=_count, metavar="N", help="default 100; with --trace its first N rows, default all")
    add("--random-input-len", type=_count, default=1024, metavar="N", help="tokens of a prompt, default 1024")
    add("--random-output-len", type=_count, default=128, metavar="N", help="tokens to generate, default 128")
    add("--random-range-ratio", type=_ratio, default=0.0, metavar="R", help="lengths vary by this share, default 0")
    add("--trace", type=Path, metavar="FILE", help="recorded lengths and arrivals, CSV or JSON lines")
    add("--scale", type=_positive, default=1.0, metavar="S", help="multiply all lengths of a trace, default 1")
    seed = "a seed used before may meet its own prompts in the server's prefix cache; default 0"
    add("--seed", type=int, default=0, metavar="N", help=seed)
    add("--text", action="store_true", help="prompts are words, not token ids; lengths are then roughly right only")
    vocab = f"token ids stay below it; default: what /v1/models says, else {FALLBACK_VOCAB_SIZE}"
    add("--vocab-size", type=_vocab_size, metavar="N", help=vocab)


def _pace_flags(add: Callable[..., Any]) -> None:
    add("--request-rate", type=_positive, metavar="R", help="per second; default: the trace's own times, else inf")
    shape = "gamma shape of the gaps; 1 Poisson, below: bursts"
    add("--burstiness", type=_positive, default=1.0, metavar="B", help=shape)
    add("--stretch", type=_positive, default=1.0, metavar="S", help="multiply a trace's times, default 1")
    add("--max-concurrency", type=_count, metavar="N", help="most requests at once: a closed loop")
    add("--workers", type=_count, default=1, metavar="N", help="processes that send the requests, default 1")
    add("--share", type=_share, default=(0, 1), help=argparse.SUPPRESS)  # a worker's requests: "1/4", every fourth


def _report_flags(add: Callable[..., Any]) -> None:
    add("--goodput", type=_limit, nargs="+", default=(), metavar="ttft:MS", help="limits in ms for ttft, tpot, e2el")
    add("--percentile-metrics", type=_kinds, default=KINDS, metavar="K,K", help="default ttft,tpot,itl,e2el")
    add("--metric-percentiles", type=_percentiles, default=(99.0,), metavar="P,P", help="default 99")
    text = f"write everything there as JSON; without FILE {_SAVED}"
    add("--save-result", type=Path, nargs="?", const=_SAVED, metavar="FILE", help=text)
    add("--result-filename", type=Path, metavar="FILE", help="the same")
    add("--result-dir", type=Path, metavar="FOLDER", help="where that file is")
    for flag in ("--disable-tqdm", "--save-detailed", "--trust-remote-code"):  # vLLM's flags, accepted and ignored
        add(flag, action="store_true", dest="ignored", help=argparse.SUPPRESS)
    add("--tokenizer", dest="ignored", help=argparse.SUPPRESS)


def _dataset(text: str) -> str:
    if text != "random":
        raise argparse.ArgumentTypeError(
            f"{text!r} is not built in; random is, and --trace FILE replays recorded lengths and times"
        )
    return text


def _count(text: str) -> int:
    return _number(int, text, lambda value: value >= 1, "must be a whole number of at least 1")


def _vocab_size(text: str) -> int:
    return _number(
        int, text, lambda value: value > FIRST_TOKEN_ID, f"must be above {FIRST_TOKEN_ID}, the first id used"
    )


def _share(text: str) -> tuple[int, int]:
    first, _, num = text.partition("/")
    return int(first), int(num)


def _positive(text: str) -> float:
    return _number(float, text, lambda value: value > 0, "must be a number above 0")


def _ratio(text: str) -> float:
    return _number(float, text, lambda value: 0 <= value <= 1, "must be a number between 0 and 1")


def _percentiles(text: str) -> tuple[float, ...]:
    rule = "must be numbers between 0 and 100, with commas"
    return tuple(_number(float, part, lambda value: 0 <= value <= 100, rule) for part in text.split(","))


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(part.strip() for part in text.split(","))
    if not set(kinds) <= set(KINDS):
        raise argparse.ArgumentTypeError(f"{text!r} may name {', '.join(KINDS)}, with commas")
    return kinds


def _limit(text: str) -> tuple[str, float]:
    kind, _, limit = text.partition(":")
    if kind not in ("ttft", "tpot", "e2el"):
        raise argparse.ArgumentTypeError(f"{text!r} must be ttft:MS, tpot:MS or e2el:MS")
    return kind, _positive(limit)


def _number(kind: Callable[[str], N], text: str, is_right: Callable[[N], bool], rule: str) -> N:
    try:
        value = kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} {rule}") from None
    if not is_right(value):
        raise argparse.ArgumentTypeError(f"{text!r} {rule}")
    return value
