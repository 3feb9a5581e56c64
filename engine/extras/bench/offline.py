"""`splitfuse bench offline`: output tokens per second of this engine, and of transformers beside it in the same run.

Pairs are interleaved (ours, theirs, ours, …) on the same seeded random weights, greedy, no early end. Look at the
median of the per-pair ratios, since the machine's speed drifts from minute to minute.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ...config import EngineConfig
from ...core.sampling_params import SamplingParams
from ...execution.models.registry import read_model_config
from ...execution.models.resolved_model import resolve_device
from ...formats.checkpoint import model_folder
from ...formats.weights import DummySource
from ...serving.llm import LLM
from .shapes import SHAPES as SHAPES
from .shapes import Point as Point

Generate = Callable[[list[list[int]], int], list[list[int]]]


def ours(folder: Path, args: argparse.Namespace) -> tuple[Generate, float]:
    """Return this engine's generate, and the seconds until it was ready."""
    start = time.perf_counter()
    widest = max(args.points, key=lambda point: point.num_seqs)
    llm = LLM(
        model=str(folder),
        load_format="dummy" if args.model in SHAPES else "auto",
        device=args.device,
        dtype=args.dtype,
        max_num_seqs=max(widest.num_seqs, 1),
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_model_len=max(point.prompt_len for point in args.points) + args.output_len,
        num_threads=args.num_threads,
        seed=args.seed,
    )

    def generate(prompts: list[list[int]], output_len: int) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
        return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]

    return generate, time.perf_counter() - start


def transformers_generate(folder: Path, args: argparse.Namespace) -> tuple[Generate, float]:
    """Return transformers' static-batch `generate` on the same weights, and the seconds until it was ready."""
    start = time.perf_counter()
    from transformers import AutoConfig, AutoModelForCausalLM

    device = resolve_device(args.device)
    if args.model in SHAPES:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
        source = DummySource(dtype=torch.bfloat16, seed=args.seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(source.take(name, tuple(parameter.shape)))
    else:
        model = AutoModelForCausalLM.from_pretrained(folder)
    model = model.eval().to(device)
    model.generation_config.eos_token_id = None

    @torch.inference_mode()
    def generate(prompts: list[list[int]], output_len: int) -> list[list[int]]:
        ids = torch.tensor(prompts, device=device)
        mask = torch.ones_like(ids)
        out = model.generate(ids, attention_mask=mask, max_new_tokens=output_len, do_sample=False, pad_token_id=0)
        return out[:, ids.shape[1] :].tolist()  # type: ignore[no-any-return]

    return generate, time.perf_counter() - start


def measure(generate: Generate, prompts: list[list[int]], output_len: int) -> float:
    """Return the output tokens per second of one call, whose time includes the prompts."""
    start = time.perf_counter()
    outputs = generate(prompts, output_len)
    elapsed = time.perf_counter() - start
    assert all(len(output) == output_len for output in outputs)
    return len(prompts) * output_len / elapsed


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure and print all points. `args`: of command.py. Raises ConfigError."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = _folder(args.model, Path(scratch))
        vocab_size = read_model_config(folder).vocab_size
        print(f"model {args.model}, {args.dtype}, {args.output_len} new tokens, {args.num_threads} threads", flush=True)
        engines = {"splitfuse": ours(folder, args)}
        if args.peer == "transformers":
            engines["transformers"] = transformers_generate(folder, args)
    torch.set_num_threads(args.num_threads)
    print(f"ready in {', '.join(f'{name} {seconds:.1f} s' for name, (_, seconds) in engines.items())}", flush=True)
    results = [_measure_point(point, engines, vocab_size, args) for point in args.points]
    return {"model": args.model, "output_len": args.output_len, "threads": args.num_threads, "points": results}


def _measure_point(
    point: Point, engines: dict[str, tuple[Generate, float]], vocab_size: int, args: argparse.Namespace
) -> dict[str, Any]:
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for pair in range(-1, args.pairs):  # the first pair warms up
        prompts = point.prompts(vocab_size, seed=args.seed + pair)
        for name, (generate, _) in engines.items():
            rate = measure(generate, prompts, args.output_len)
            if pair >= 0:
                rates[name].append(rate)
    result: dict[str, Any] = {"point": str(point), **{name: statistics.median(rate) for name, rate in rates.items()}}
    line = f"{point!s:>9}: " + ", ".join(f"{name} {statistics.median(rate):.1f} tok/s" for name, rate in rates.items())
    if args.peer != "none":
        ratios = [a / b for a, b in zip(rates["splitfuse"], rates[args.peer], strict=True)]
        result.update(ratio=statistics.median(ratios), ratio_min=min(ratios), ratio_max=max(ratios))
        line += f", ratio {result['ratio']:.2f} ({min(ratios):.2f} to {max(ratios):.2f} over {len(ratios)} pairs)"
    print(line, flush=True)
    return result


def _folder(model: str, scratch: Path) -> Path:
    if model not in SHAPES:
        return model_folder(EngineConfig(model=model), model)
    (scratch / "config.json").write_text(json.dumps(SHAPES[model]))
    return scratch
