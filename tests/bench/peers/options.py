"""Options of both comparisons on the command line."""

import argparse
import datetime
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from model_folder import write_model_folder

from splitfuse.engine.extras.bench.offline import SHAPES


def parser_of(description: str, *, peers: Sequence[str], models: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return a parser of the options that both take; `peers`: the default peers; `models`: names beside SHAPES."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    add = parser.add_argument
    add("--model", choices=[*SHAPES, *models], default="llama-221m")
    add("--layers", type=int, help="cut the shape to so many layers")
    add("--peers", nargs="*", default=list(peers))
    add("--pairs", type=int, default=3)
    add("--num-threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--seed", type=int, default=0)
    add("--folder", type=Path, help="where the weights are or will be; default: a temporary folder")
    add("--save-result", type=Path, help="write the figures as JSON")
    return parser


def where(what: str) -> str:
    """Return what was measured, on which processor, and today, for the caption of a picture."""
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    num_cores = len(os.sched_getaffinity(0))
    return f"{what}; {num_cores} cores of an {names[0] if names else 'unknown processor'}, {datetime.date.today()}"


def scratch_folder(args: argparse.Namespace, stack: ExitStack) -> Path:
    """Return the folder for weights."""
    if args.folder is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory()))
    args.folder.mkdir(parents=True, exist_ok=True)
    return Path(args.folder)


def model_folder(args: argparse.Namespace, stack: ExitStack) -> Path:
    """Return the model's folder, written unless it exists."""
    cut = {"num_hidden_layers": args.layers} if args.layers else {}
    return write_model_folder(scratch_folder(args, stack) / name_of(args), SHAPES[args.model] | cut)


def name_of(args: argparse.Namespace) -> str:
    """Return the shape's name, and its number of layers if it is cut."""
    return f"{args.model}-{args.layers}-layers" if args.layers else str(args.model)
