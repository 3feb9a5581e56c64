"""`splitfuse bench offline`: output tokens per second of this engine, and of transformers beside it in the same run.

Pairs are interleaved (ours, theirs, ours, …) on the same seeded random weights, greedy, no early end. Look at the
median of the per-pair ratios, since the machine's speed drifts from minute to minute.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...config.cores import default_num_threads
from ...core.sampling_params import SamplingParams
from ...execution.models.registry import read_model_config
from ...execution.models.weights import DummySource
from ...serving.llm import LLM
from ...serving.loading import resolve_device

_COMMON = {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "dtype": "bfloat16"}
_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **_COMMON}
_QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **_COMMON, "rms_norm_eps": 1e-6}


def _sizes(
    hidden: int, *, layers: int, heads: int, kv_heads: int, head_dim: int, inner: int, vocab: int
) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": inner,
        "vocab_size": vocab,
    }


# Hugging Face configs of models to measure without a checkpoint.
SHAPES: dict[str, dict[str, Any]] = {
    "llama-40m": _LLAMA | _sizes(512, layers=8, heads=8, kv_heads=4, head_dim=64, inner=1408, vocab=32000),
    "llama-221m": _LLAMA | _sizes(1024, layers=16, heads=16, kv_heads=8, head_dim=64, inner=2816, vocab=32000),
    "qwen3-0.6b": {
        **_QWEN3,
        **_sizes(1024, layers=28, heads=16, kv_heads=8, head_dim=128, inner=3072, vocab=151936),
        "rope_theta": 1000000.0,
    },
    "llama-3.1-8b": {
        **_LLAMA,
        **_sizes(4096, layers=32, heads=32, kv_heads=8, head_dim=128, inner=14336, vocab=128256),
        "max_position_embeddings": 131072,
        "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
    },
}


@dataclass(frozen=True)
class Point:
    """Load of `num_seqs` prompts at once, of `prompt_len` tokens each."""

    num_seqs: int
    prompt_len: int

    @classmethod
    def parse(cls, text: str) -> "Point":
        """Read a load such as "8x128": 8 prompts of 128 tokens."""
        num_seqs, prompt_len = text.lower().split("x")
        return cls(int(num_seqs), int(prompt_len))

    def prompts(self, vocab_size: int, *, seed: int) -> list[list[int]]:
        """Draw prompts of random ids."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, vocab_size, (self.num_seqs, self.prompt_len), generator=generator).tolist()

    def __str__(self) -> str:
        return f"{self.num_seqs} x {self.prompt_len}"


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
    """Measure and print all points."""
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
        return Path(model)
    (scratch / "config.json").write_text(json.dumps(SHAPES[model]))
    return scratch


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="splitfuse bench offline", usage="%(prog)s [flags]", description=__doc__.splitlines()[0]
    )
    add, points = parser.add_argument, [Point(1, 32), Point(8, 128), Point(32, 256)]
    add("--model", default="llama-221m", help=f"a folder, or a shape: {', '.join(SHAPES)}; default llama-221m")
    add("--peer", choices=("transformers", "none"), default="transformers", help="what runs beside it")
    text = f"prompts x tokens; default {', '.join(map(str, points))}"
    add("--points", nargs="+", type=Point.parse, default=points, metavar="NxL", help=text)
    add("--output-len", type=int, default=64, metavar="N", help="tokens to generate, default 64")
    add("--pairs", type=int, default=3, metavar="N", help="runs of each, in turn, default 3")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--dtype", default="auto", help="of weights and activations, as serve's")
    add("--max-num-batched-tokens", type=int, default=512, metavar="N", help="token budget of a step, default 512")
    add("--num-threads", type=int, default=default_num_threads(), metavar="N", help="default: one per core")
    add("--seed", type=int, default=0, metavar="N", help="of weights and prompts, default 0")
    add("--save-result", type=Path, metavar="FILE", help="write the figures as JSON")
    return parser


def main(argv: list[str]) -> int:
    """Run `splitfuse bench offline`."""
    args = _parser().parse_args(argv)
    results = run(args)
    if args.save_result:
        args.save_result.write_text(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
