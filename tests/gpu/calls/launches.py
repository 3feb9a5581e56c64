"""Each kernel that memory bounds, launched three times: for a profiler, with the shapes of Llama-3.1-8B.

ncu --clock-control none --metrics … python3 tests/gpu/calls/launches.py [--dry]
"""

import os
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
if "--dry" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"
import paths  # noqa: F401
import torch
from bench_cases import HIDDEN, MLP, Load, Mixture, QuantizedMatmul, in_e4m3
from kernel_bench import DTYPE
from kernel_cases import DEVICE, INTERPRETED

from splitfuse.kernels.cuda import backend as cuda
from splitfuse.kernels.cuda.linear import exact_linear, few_rows, fp8_linear
from splitfuse.kernels.cuda.quantized_linear import multiply


def main() -> None:
    num_rows, length = (2, 64) if INTERPRETED else (32, 4096)
    q, cache, *rest = Load(num_rows, length).build()
    runs = {"decode": partial(cuda.paged_attention, q, cache, *rest)}
    runs["decode, e4m3 cache"] = partial(cuda.paged_attention, q, in_e4m3(cache), *rest)
    weight, x = torch.randn(MLP, HIDDEN, device=DEVICE, dtype=DTYPE), torch.randn(1, HIDDEN, device=DEVICE, dtype=DTYPE)
    runs["few rows"] = partial(few_rows.multiply, x, few_rows.Weight(weight, None, None), dtype=DTYPE)
    runs["few rows, e4m3"] = partial(fp8_linear.multiply, x, fp8_linear.pack(weight, None))
    runs["exact product"] = partial(exact_linear.multiply, x, weight, None)
    for bits in (8, 4):
        for rows in (1, 32):
            xs, packed = QuantizedMatmul(rows, MLP, HIDDEN, bits).build()
            runs[f"int{bits}, {rows} rows"] = partial(multiply, xs[0], packed)
    mixture = Mixture(64, 48, 5, 2) if INTERPRETED else Mixture(2048, 768, 128, 8)
    tokens = [torch.randn(8, width, device=DEVICE, dtype=DTYPE) for width in (mixture.hidden, mixture.num_experts)]
    runs["experts"] = partial(mixture.ours, *tokens, mixture.build())
    for name, launch in runs.items():
        print(name, flush=True)
        for _ in range(3):
            launch()
    if DEVICE == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
