"""`splitfuse bench offline`: its flags, which are read before torch is imported."""

import argparse
import difflib
import json
from collections.abc import Sequence
from pathlib import Path

from ...config.host import default_num_threads
from ...errors import ConfigError
from ...execution.build_announcement import announce_build
from ...formats.checkpoint import local_model
from .shapes import SHAPES, Point


def offline_parser(parser_class: type[argparse.ArgumentParser] = argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    parser = parser_class(
        prog="splitfuse bench offline",
        usage="%(prog)s [flags]",
        description="Output tokens per second of this engine, and of transformers beside it in the same run.",
        allow_abbrev=False,
    )
    add, points = parser.add_argument, [Point(1, 32), Point(8, 128), Point(32, 256)]
    add("--model", default="llama-221m", help=f"a model, or a shape: {', '.join(SHAPES)}; default llama-221m")
    add("--peer", choices=("transformers", "none"), default="transformers", help="what runs beside it")
    text = f"prompts x tokens; default {', '.join(map(str, points))}"
    add("--points", nargs="+", type=_point, default=points, metavar="NxL", help=text)
    add("--output-len", type=int, default=64, metavar="N", help="tokens to generate, default 64")
    add("--pairs", type=int, default=3, metavar="N", help="runs of each, in turn, default 3")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", metavar="DEVICE", help="auto, cpu or cuda")
    add("--dtype", default="auto", help="of weights and activations, as serve's")
    add("--max-num-batched-tokens", type=int, default=512, metavar="N", help="token budget of a step, default 512")
    add("--num-threads", type=int, default=default_num_threads(), metavar="N", help="default: one per core")
    add("--seed", type=int, default=0, metavar="N", help="of weights and prompts, default 0")
    add("--save-result", type=Path, metavar="FILE", help="write the figures as JSON")
    return parser


def main(argv: Sequence[str], *, parser_class: type[argparse.ArgumentParser] = argparse.ArgumentParser) -> int:
    """Run `splitfuse bench offline`. Raises ConfigError."""
    args = offline_parser(parser_class).parse_args(argv)
    is_shape = args.model in SHAPES
    if not is_shape:
        _check_model(args.model)
    announce_build(args.device, None if is_shape else args.model)
    from .offline import run

    results = run(args)
    if args.save_result:
        args.save_result.write_text(json.dumps(results, indent=2))
    return 0


def _check_model(name: str) -> None:
    """Raise ConfigError that names a shape or model like this name, if there is no such model."""
    try:
        local_model(name)
    except ConfigError:
        if near := difflib.get_close_matches(name, SHAPES, n=1, cutoff=0.7):
            raise ConfigError(f"--model {name}: no such shape; did you mean {near[0]}?") from None
        raise


def _point(text: str) -> Point:
    try:
        return Point.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NxL, such as 8x128: prompts x tokens") from None
