"""What both comparisons are told on the command line."""

import argparse
import os
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from model_folder import write_model_folder
from processes import environment_of, python_of

from splitfuse.engine.bench_offline import SHAPES


def parser_of(description: str, *, peers: Sequence[str]) -> argparse.ArgumentParser:
    """With the options that both take; `peers`: those that are asked if none are named."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    add = parser.add_argument
    add("--model", choices=SHAPES, default="llama-221m", help="its shape, with random weights in bfloat16")
    add("--gguf", type=Path, help="a real model instead; its weights are requantized to --bits")
    add("--bits", type=int, choices=(16, 8, 4), default=16, help="of a real model's weights: BF16, Q8_0, Q4_0")
    add("--peers", nargs="*", default=list(peers))
    add("--pairs", type=int, default=3)
    add("--num-threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--seed", type=int, default=0)
    add("--folder", type=Path, help="where the weights are or will be; default: a temporary folder")
    add("--save-result", type=Path, help="write the figures as JSON")
    return parser


def model_folder(args: argparse.Namespace, stack: ExitStack) -> Path:
    """The model's folder or GGUF file, made if need be."""
    scratch = args.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
    if args.gguf is None:
        return write_model_folder(scratch / args.model, args.model)
    file = scratch / f"{args.gguf.stem}-as-{args.bits}.gguf"
    if not file.exists():
        script = Path(__file__).with_name("requantize.py")
        command = [python_of("llamacpp"), str(script), str(args.gguf), str(file), str(args.bits)]
        subprocess.run(command, env=environment_of("llamacpp"), check=True, capture_output=True)
    return file
