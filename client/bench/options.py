"""The command line of `splitfuse bench serve`: flags, defaults, limits. The flags are `vllm bench serve`'s."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .latency import KINDS
from .workload import FIRST_TOKEN_ID

FALLBACK_VOCAB_SIZE = 1000  # where neither the user nor the server names one
N = TypeVar("N", int, float)
ENDPOINTS = ("/v1/completions", "/v1/chat/completions")


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """The options of a run, named as the flags. None means "as the server or the trace has it"."""

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
        """Whether prompts are words: chat takes no token ids."""
        return self.text or self.endpoint.endswith("/chat/completions")


def parse_options(argv: Sequence[str] | None) -> LoadOptions:
    """The options of a command line. Ends the process with status 2 and a line on standard error where it is wrong."""
    values = vars(_parser().parse_args(argv))
    return LoadOptions(**values | {"goodput": dict(values["goodput"])})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="splitfuse bench serve",
        description="Put an OpenAI-compatible server under load; names and formulas are vllm bench serve's.",
    )
    for group in (_target_flags, _load_flags, _pace_flags, _report_flags):
        group(parser.add_argument)
    return parser


def _target_flags(add: Callable[..., Any]) -> None:
    add("--base-url", metavar="URL", help="default: SPLITFUSE_BASE_URL, or http://127.0.0.1:8000")
    add("--endpoint", choices=ENDPOINTS, default=ENDPOINTS[0])
    add("--model", help="default: the one that the server has")
    add("--api-key", metavar="KEY", help="default: SPLITFUSE_API_KEY")
    add("--temperature", type=float, default=0.0)
    add("--ignore-eos", action="store_true", help="generate the whole output length")


def _load_flags(add: Callable[..., Any]) -> None:
    add("--num-prompts", type=_count, metavar="N", help="default 100; with --trace its first N rows, default all")
    add("--random-input-len", type=_count, default=1024, metavar="N", help="tokens of a prompt, default 1024")
    add("--random-output-len", type=_count, default=128, metavar="N", help="tokens to generate, default 128")
    add("--random-range-ratio", type=_ratio, default=0.0, metavar="R", help="lengths vary by this share, default 0")
    add("--trace", type=Path, metavar="FILE", help="recorded lengths and arrivals, CSV or JSON lines")
    add("--scale", type=_positive, default=1.0, metavar="S", help="multiply all lengths of a trace, default 1")
    add("--seed", type=int, default=0, help="a seed used before may meet its own prompts in the server's prefix cache")
    add("--text", action="store_true", help="prompts are words, not token ids; lengths are then roughly right only")
    vocab = f"token ids stay below it; default: what /v1/models says, else {FALLBACK_VOCAB_SIZE}"
    add("--vocab-size", type=_vocab_size, metavar="N", help=vocab)


def _pace_flags(add: Callable[..., Any]) -> None:
    add("--request-rate", type=_positive, metavar="R", help="per second; default: the trace's own times, else inf")
    shape = "gamma shape of the gaps; 1 Poisson, below: bursts"
    add("--burstiness", type=_positive, default=1.0, metavar="B", help=shape)
    add(
        "--stretch",
        type=_positive,
        default=1.0,
        metavar="S",
        help="multiply a trace's times, default 1",
    )
    add("--max-concurrency", type=_count, metavar="N", help="most requests at once: a closed loop")


def _report_flags(add: Callable[..., Any]) -> None:
    add("--goodput", type=_limit, nargs="+", default=(), metavar="ttft:MS", help="limits in ms for ttft, tpot, e2el")
    add("--percentile-metrics", type=_kinds, default=KINDS, metavar="K,K", help="default ttft,tpot,itl,e2el")
    add("--metric-percentiles", type=_percentiles, default=(99.0,), metavar="P,P", help="default 99")
    add("--save-result", type=Path, metavar="FILE", help="write everything there as JSON")


def _count(text: str) -> int:
    return _number(int, text, lambda value: value >= 1, "must be a whole number of at least 1")


def _vocab_size(text: str) -> int:
    return _number(
        int, text, lambda value: value > FIRST_TOKEN_ID, f"must be above {FIRST_TOKEN_ID}, the first id used"
    )


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
