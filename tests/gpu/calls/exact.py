"""Exact mode on a device: tokens and logprobs of the demo model, bit by bit, under many schedules.

    python3 tests/gpu/calls/exact.py [--device cuda] [--quantization int4 int8 fp8] [--model FILE.gguf]

Prints the share of answers that other budgets, batches, policies, graphs and preemptions change, with --exact and
without. If it is 0 with --exact, and tests/kernels/cuda/test_exact_*.py pass compiled, the compute capability goes into
MEASURED_EXACT (kernels/cuda/device_info.py). Results: $OUT/exact.json. Exits with 1 if --exact changes an answer.
"""

import argparse
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import paths  # noqa: F401
import torch

from splitfuse.engine import LLM, SamplingParams

SCHEDULES: dict[str, dict[str, Any]] = {
    "budget 512": {"max_num_batched_tokens": 512, "max_num_seqs": 32},
    "budget 64": {"max_num_batched_tokens": 64, "max_num_seqs": 32},
    "one at a time": {"max_num_batched_tokens": 512, "max_num_seqs": 1},
    "prompts first": {"max_num_batched_tokens": 512, "max_num_seqs": 8, "batching_policy": "prefill_first"},
    "preemptions": {"max_num_batched_tokens": 128, "max_num_seqs": 16, "num_kv_blocks": 64},
    "eager": {"max_num_batched_tokens": 256, "max_num_seqs": 32, "enforce_eager": True},
}
Answer = tuple[tuple[int, ...], tuple[float, ...]]


def answers(dtype: str, *, is_exact: bool, num_prompts: int, **settings: Any) -> list[Answer]:
    choose = random.Random(1)
    lengths = [choose.choice([1, 3, 17, 64, 100, 300]) for _ in range(num_prompts)]
    prompts = [{"prompt_token_ids": [choose.randrange(1, 250) for _ in range(length)]} for length in lengths]
    params = [
        SamplingParams(temperature=0.8 * (seed % 2), seed=seed, max_tokens=24, ignore_eos=True, logprobs=1)
        for seed in range(num_prompts)
    ]
    llm = LLM(dtype=dtype, exact=is_exact, max_model_len=512, **{"num_kv_blocks": 2000, **settings})
    outputs = [output.outputs[0] for output in llm.generate(prompts, params)]
    found = [(tuple(output.token_ids), tuple(entry.logprob for entry in output.logprobs or ())) for output in outputs]
    llm.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="demo", help="such as a GGUF file: quantized files are not compared yet")
    parser.add_argument("--quantization", nargs="*", default=(), help="of bfloat16, in the place of the dtypes")
    options = parser.parse_args()
    rows, num_prompts = [], 40 if options.device == "cuda" else 8
    capability = "" if options.device == "cpu" else str(torch.cuda.get_device_capability())
    kinds: list[tuple[str, str | None]] = [("bfloat16", name) for name in options.quantization]
    kinds = kinds or [(dtype, None) for dtype in ("bfloat16", "float16", "float32")]
    for dtype, quantization in kinds if options.device == "cuda" else [("float32", None)]:
        kind = quantization or dtype
        for is_exact in (True,) if quantization else (True, False):
            first: list[Answer] | None = None
            for name, schedule in SCHEDULES.items():
                settings = {**schedule, "model": options.model, "device": options.device, "quantization": quantization}
                found = answers(dtype, is_exact=is_exact, num_prompts=num_prompts, **settings)
                first = first or found
                changed = sum(one != other for one, other in zip(found, first, strict=True)) / num_prompts
                rows.append({"dtype": kind, "is_exact": is_exact, "schedule": name, "changed": changed})
                print(f"{kind}, {'--exact' if is_exact else '--no-exact'}, {name}: {changed:.1%} changed", flush=True)
                path = Path(os.environ.get("OUT", ".")) / "exact.json"
                path.write_text(json.dumps({"capability": capability, "rows": rows}, indent=1))
    return int(any(row["is_exact"] and row["changed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
