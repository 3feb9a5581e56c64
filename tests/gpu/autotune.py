"""Autotuning of untuned constants for loads under their goals: prints lines for kernels/cuda/tile_configs.py.

A choice that does not compile or does not fit is skipped; a load for which no time is left keeps its choice.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
from bench_cases import HEAD_DIM, NUM_HEADS, NUM_KV_HEADS, Load, QuantizedMatmul, in_e4m3, planned
from kernel_bench import Result, median_us
from kernel_cases import INTERPRETED

from splitfuse.kernels import ops
from splitfuse.kernels.cuda import attention_decode, attention_prefill, quantized_linear
from splitfuse.kernels.cuda.compile_ahead import compile_ahead
from splitfuse.kernels.cuda.device_info import device_info

DECODE = [
    (16, 32, 4, 4), (16, 32, 4, 3), (16, 32, 4, 6), (16, 32, 2, 4), (16, 64, 4, 3), (16, 64, 4, 4), (16, 64, 8, 3),
    (16, 128, 4, 2), (16, 128, 4, 3), (16, 128, 8, 2), (16, 16, 4, 4), (16, 16, 4, 8), (16, 16, 2, 6),
]  # fmt: skip
PREFILL = [
    (128, 64, 8, 3), (128, 64, 8, 2), (128, 64, 4, 3), (128, 128, 8, 1), (128, 128, 8, 2), (128, 32, 8, 3),
    (128, 32, 8, 4), (64, 64, 4, 3), (64, 64, 4, 2), (64, 128, 4, 2), (64, 32, 4, 3), (64, 16, 4, 4), (256, 64, 8, 2),
]  # fmt: skip
QUANTIZED = [
    (16, 32, 4, 6), (16, 32, 4, 8), (16, 32, 2, 6), (16, 16, 4, 8), (16, 16, 2, 8), (16, 64, 4, 4), (16, 64, 4, 6),
    (32, 64, 4, 4), (32, 32, 4, 5), (64, 64, 4, 4), (64, 64, 8, 4), (64, 128, 8, 3), (128, 64, 8, 3), (128, 128, 8, 3),
]  # fmt: skip
MIN_TOKENS = [64, 128, 256, 512, 1024]


@dataclass(frozen=True)
class Tuned:
    """Best choice for one load."""

    load: str
    kernel: str
    capability: int
    head_dim: int
    choice: tuple[int, ...]
    microseconds: float
    before: float  # microseconds of the present choice

    def __str__(self) -> str:
        gain = self.before / self.microseconds
        element_size = 1 if self.load.endswith("e4m3") else 2
        key = f'("{self.kernel}", {self.capability}, {self.head_dim}, {element_size}): {self.choice},'
        return f"{key:48}  # {self.load}: {self.microseconds:.1f} us, before {self.before:.1f}: {gain:.2f}x"


def _best(run: Callable[[Any], object], choices: Sequence[Any], deadline: float) -> tuple[Any, float]:
    best, least = None, float("inf")
    if not INTERPRETED:
        with suppress(Exception), compile_ahead():  # the timing below meets these errors again
            for choice in choices:
                run(choice)
    for choice in choices:
        if time.monotonic() > deadline:
            break
        try:
            microseconds = median_us(lambda choice=choice: run(choice))  # type: ignore[misc]
        except (triton.runtime.errors.OutOfResources, triton.compiler.errors.CompilationError, RuntimeError) as exc:
            print(f"  {choice}: {type(exc).__name__}", flush=True)
            continue
        print(f"  {choice}: {microseconds:.1f} us", flush=True)
        if microseconds < least:
            best, least = choice, microseconds
    return best, least


def tune(results: list[Result], *, seconds: float) -> list[Tuned]:
    """Try the choices for every load that missed its goal, until time is over."""
    deadline = time.monotonic() + seconds
    tuned = []
    capability = device_info(torch.device("cpu" if INTERPRETED else "cuda")).capability
    for result in results:
        found = None if result.met is not False else _choices_for(result.name)
        if found is None or time.monotonic() > deadline:
            continue
        kernel, run, choices = found
        print(f"{result.name}: {result.microseconds:.1f} us", flush=True)
        best, least = _best(run, choices[:2] if INTERPRETED else choices, deadline)
        if best is not None:
            each = best if isinstance(best, tuple) else (best,)
            tuned.append(Tuned(result.name, kernel, capability, HEAD_DIM, each, least, result.microseconds))
            print(tuned[-1], flush=True)
    return tuned


def _choices_for(name: str) -> tuple[str, Callable[[Any], object], list[Any]] | None:
    words = name.replace(",", "").split()
    if words[0] in ("int8", "int4") and words[2] == "x":
        product = QuantizedMatmul(int(words[1]), int(words[5]), int(words[3]), int(words[0][3:]))
        xs, packed = product.build()
        return (
            f"quantized {words[0]}",
            lambda choice: quantized_linear.multiply(xs[0], packed, config=quantized_linear.Config(*choice)),
            QUANTIZED,
        )
    if words[0] == "prefill":
        load = Load(1, int(words[1]) + int(words[3]), int(words[1]))
        batch = _batch(load, name)
        attend = partial(attention_prefill.prefill_attention, *batch, torch.empty_like(batch[0]))
        return "prefill", lambda choice: attend(config=attention_prefill.Config(*choice)), PREFILL
    if words[0] != "decode":
        return None
    q, cache, ragged, args = _batch(Load(int(words[1]), int(words[3])), name)
    out, tile = torch.empty_like(q), _choose_tile(cache.keys.element_size())

    def attend_with(config: attention_decode.Config, min_tokens: int = 0) -> None:
        key = (config.BLOCK_N, min_tokens)
        if key not in plans:  # made on the host once, not within a timing
            plans[key] = planned(ragged, tile=config.BLOCK_N, min_tokens=min_tokens)
        attention_decode.decode_attention(q, cache, plans[key], args, out, config=config)

    plans: dict[tuple[int, int], ops.RaggedBatch] = {}
    if words[-1] == "split":
        return "min_tokens", lambda choice: attend_with(tile, choice), MIN_TOKENS
    return "decode", lambda choice: attend_with(attention_decode.Config(*choice)), DECODE


def _choose_tile(element_size: int) -> attention_decode.Config:
    gpu = device_info(torch.device("cpu" if INTERPRETED else "cuda"))
    return attention_decode.choose_config(NUM_HEADS // NUM_KV_HEADS, HEAD_DIM, element_size, gpu)


def _batch(load: Load, name: str) -> tuple[Any, ...]:
    q, cache, *rest = load.build()
    return q, in_e4m3(cache) if name.endswith("e4m3") else cache, *rest
