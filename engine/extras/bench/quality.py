"""`splitfuse bench quality`: how far a model's next tokens are from those of the same weights in float32."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from ...config.host import default_num_threads
from ...errors import ConfigError
from ...execution.build_announcement import announce_build

_SETTINGS = ("dtype", "quantization", "quantization_activations", "kv_cache_dtype")


def quality_parser(parser_class: type[argparse.ArgumentParser] = argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    parser = parser_class(
        prog="splitfuse bench quality",
        usage="%(prog)s MODEL [flags]",
        description="Divergence of a model's next tokens from those of the same weights in float32, by kind of text.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="what serve takes")
    add("--reference", metavar="MODEL", help="another model with the same tokens; default MODEL itself, in float32")
    add(
        "--text",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="texts; default prose, code and thirteen languages",
    )
    add("--num-tokens", type=int, default=1000, metavar="N", help="of each text at most, default 1000")
    for name in _SETTINGS:
        add(f"--{name.replace('_', '-')}", help="of the model, as serve's")
    add("--num-threads", type=int, default=default_num_threads(), metavar="N", help="default: one per core")
    add("--json", action="store_true", help="print one object")
    return parser


def main(argv: Sequence[str], *, parser_class: type[argparse.ArgumentParser] = argparse.ArgumentParser) -> int:
    """Run `splitfuse bench quality`. Raises ConfigError."""
    args = quality_parser(parser_class).parse_args(argv)
    texts = {path.stem: _read(path) for path in args.text or sorted((Path(__file__).parent / "texts").glob("*.txt"))}
    settings = {name: value for name in _SETTINGS if (value := getattr(args, name)) is not None}
    announce_build("cpu", args.model)
    from .divergence import compare

    figures = compare(
        args.model,
        texts,
        reference=args.reference or args.model,
        num_tokens=args.num_tokens,
        num_threads=args.num_threads,
        settings=settings,
    )
    if args.json:
        print(json.dumps({"model": args.model, **{kind: row._asdict() for kind, row in figures.items()}}))
        return 0
    print(f"{'text':<10} tokens  divergence: mean     99 %  equal tokens  perplexity  in float32")
    for kind, row in figures.items():
        print(
            f"{kind:<10} {row.num_tokens:>6}  {row.divergence:>16.5f} {row.divergence_p99:>8.4f}"
            f"  {row.equal_tokens:>11.1%}  {row.perplexity:>10.3f}  {row.reference_perplexity:>10.3f}"
        )
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as exc:
        raise ConfigError(f"--text {path}: {exc}") from exc
