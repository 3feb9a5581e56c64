"""Cost of adapters: decode steps of a batch without, with one and with eight adapters, by turns in one process.

    python tests/bench/adapters.py [MODEL] [--dtype bfloat16] [--rank 16] [--seqs 32] [--pairs 7] [--threads 2]

`no setting` is an engine without --enable-lora. Wall and CPU seconds: on a busy machine CPU seconds say more.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import save_file

from splitfuse.engine import LLM, LoRARequest, SamplingParams

NUM_PROMPT, NUM_NEW = 16, 16


def adapter_of(llm: LLM, folder: Path, *, seed: int, rank: int) -> LoRARequest:
    """Write an adapter of every linear of the layers."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, part in llm.adapters._sites.parts.items():
        for half, shape in (("lora_A", (rank, part.num_inputs)), ("lora_B", (part.num_outputs, rank))):
            values = torch.randn(*shape, generator=generator) * 0.02
            tensors[f"base_model.model.{llm.adapters._sites.prefix}{name}.{half}.weight"] = values
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(f'{{"peft_type": "LORA", "lora_alpha": {rank}}}')
    return LoRARequest(folder.name, 1, str(folder))


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Return wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quantization")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--seqs", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    options: dict[str, Any] = {
        "dtype": args.dtype,
        "quantization": args.quantization,
        "num_threads": args.threads,
        "max_num_seqs": args.seqs,
        "num_kv_blocks": 16 * args.seqs,
        "enable_prefix_caching": False,
    }
    plain, llm = LLM(args.model, **options), LLM(args.model, enable_lora=True, **options)
    vocab_size = plain._runner.loaded.model_config.vocab_size
    prompts = [[(31 * i + 7 * j) % vocab_size for j in range(NUM_PROMPT)] for i in range(args.seqs)]
    params = SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True)
    with tempfile.TemporaryDirectory() as folder:
        adapters = [adapter_of(llm, Path(folder) / f"a{i}", seed=i, rank=args.rank) for i in range(8)]
        requests = [adapters[i % 8] for i in range(args.seqs)]
        calls: dict[str, Callable[[], object]] = {
            "no setting": lambda: plain.generate(prompts, params),
            "none": lambda: llm.generate(prompts, params),
            "one": lambda: llm.generate(prompts, params, lora_request=adapters[0]),
            "eight": lambda: llm.generate(prompts, params, lora_request=requests),
        }
        for call in calls.values():
            call()
        rows = [{name: timed(call) for name, call in calls.items()} for _ in range(args.pairs)]
    for name in calls:
        wall, cpu = (median(row[name][kind] for row in rows) for kind in (0, 1))
        more = [100 * (median(row[name][k] / row["no setting"][k] for row in rows) - 1) for k in (0, 1)]
        print(f"{name:>10}: {wall:.3f} s, {cpu:.3f} CPU s; {more[0]:+.1f} % wall, {more[1]:+.1f} % CPU", flush=True)
    print(f"{args.seqs} sequences of {NUM_PROMPT} + {NUM_NEW} tokens, rank {args.rank}, load {os.getloadavg()[0]:.0f}")


if __name__ == "__main__":
    main()
