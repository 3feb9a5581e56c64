"""Compare the speed of the native attention with that of an earlier commit, by turns in one process.

    python tests/bench/attention_before.py COMMIT             # all shapes
    python tests/bench/attention_before.py COMMIT bfloat16    # lines that contain this
    python tests/bench/attention_before.py COMMIT --threads 2 # instead of one

Prints the least time of each, in microseconds, and the ratio of speeds, now to before.
"""

import argparse
import functools
import inspect
import itertools
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from splitfuse.kernels import ops
from splitfuse.kernels.cpu import build, compilation

TURNS, SECONDS = 4, 0.15
SOURCES = "kernels/cpu/csrc"
# (rows, cached tokens, new tokens, query heads per KV head, KV heads, head size)
SHAPES = [(1, 64, 1, 3, 3, 64), (8, 200, 1, 3, 3, 64), (32, 290, 1, 3, 3, 64), (8, 200, 1, 1, 9, 64),
          (8, 1000, 1, 3, 3, 64), (8, 200, 1, 4, 8, 128), (8, 200, 1, 1, 8, 128), (1, 0, 256, 3, 3, 64),
          (1, 1000, 256, 3, 3, 64), (1, 256, 256, 1, 8, 128), (1, 16383, 1, 4, 8, 64), (8, 16383, 1, 4, 8, 64),
          (32, 16383, 1, 4, 2, 64), (32, 288, 1, 4, 8, 64), (1, 16384, 256, 4, 2, 64)]  # fmt: skip


def library_of(commit: str, folder: str) -> build.Library:
    """Build the library of a commit in this folder."""
    archive = subprocess.run(["git", "archive", commit, SOURCES], check=True, capture_output=True).stdout
    subprocess.run(["tar", "x", "-C", folder], input=archive, check=True)
    now = {name: getattr(compilation, name) for name in ("FOLDER", "_SOURCES", "_HEADERS", "_FLAGS_OF_ATTENTION")}
    then = Path(folder, SOURCES)
    flags = now["_FLAGS_OF_ATTENTION"] if (then / "attention.h").exists() else []  # before, the compiler chose the fmas
    _take(
        FOLDER=then, _SOURCES=sorted(then.glob("*.cpp")), _HEADERS=sorted(then.glob("*.h")), _FLAGS_OF_ATTENTION=flags
    )
    library = build.library()
    _take(**now)
    assert library is not None
    return library


def _take(**names: Any) -> None:
    build.FOLDER = names["FOLDER"]
    for name, value in names.items():
        setattr(compilation, name, value)
    compilation.library_name.cache_clear()
    compilation.source_digest.cache_clear()
    build._library.cache_clear()


def attention(shape: tuple[int, ...], dtype: torch.dtype, *, is_int8: bool) -> Callable[[build.Library], None]:
    """Return a function that attends with a library."""
    rows, context, new, group, num_kv_heads, dim = shape
    per_row = -(-(context + new) // 16)
    cache_dtype = torch.int8 if is_int8 else dtype
    size = (rows * per_row, num_kv_heads, 16, ops.token_width(dim, cache_dtype))
    keys, values = (torch.zeros(size, dtype=cache_dtype) for _ in range(2))
    q = torch.randn(rows * new, num_kv_heads * group, dim).to(dtype)
    tensors = {
        "q": q, "k_cache": keys, "v_cache": values, "out": torch.empty_like(q),
        "query_start_loc": torch.arange(0, rows * new + 1, new, dtype=torch.int32),
        "seq_lens": torch.full((rows,), context + new, dtype=torch.int32),
        "block_tables": torch.randperm(rows * per_row).int().view(rows, per_row),
    }  # fmt: skip
    numbers = {
        "num_short": rows if new <= 4 else 0, "num_rows": rows, "max_blocks": per_row, "num_heads": q.shape[1],
        "num_kv_heads": num_kv_heads, "head_dim": dim, "block_size": 16, "q_token": q.stride(0), "q_head": q.stride(1),
        "window": 0, "lookahead": 0, "value_dim": 0, "is_cache_int8": is_int8, "scale": dim**-0.5,
        "softcap": 0.0, "sinks": None,
    }  # fmt: skip

    @functools.cache
    def arguments_of(op: Callable[..., None]) -> dict[str, Any]:
        known = inspect.signature(op).parameters  # an earlier commit lacks some
        return {name: value for name, value in (tensors | numbers).items() if name in known}

    def attend(library: build.Library) -> None:
        op = library[f"paged_attention_{build.DTYPES[dtype]}"]
        op(**arguments_of(op))

    return attend


def least_us(call: Callable[[], None]) -> float:
    times, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("commit")
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_intermixed_args()
    torch.set_num_threads(args.threads)
    now = build.library()
    assert now is not None
    with tempfile.TemporaryDirectory() as folder:
        before = library_of(args.commit, folder)
    for dtype, is_int8, shape in itertools.product((torch.bfloat16, torch.float32), (False, True), SHAPES):
        line = (
            f"{build.DTYPES[dtype]} cache {'int8' if is_int8 else 'plain'} rows, cached, new, group, heads, D {shape}"
        )
        if not all(part in line for part in args.parts):
            continue
        run = attention(shape, dtype, is_int8=is_int8)
        turns = [(least_us(lambda: run(before)), least_us(lambda: run(now))) for _ in range(TURNS)]  # noqa: B023
        old, new = map(min, zip(*turns, strict=True))
        print(f"{line}: {old:.1f} {new:.1f} us, {old / new:.2f}", flush=True)


if __name__ == "__main__":
    main()
