"""A Llama served natively and through transformers, by turns: tokens a second of decodes, and of a prompt.

`python tests/bench/model_impl.py --dtype bfloat16` or `--quantization int4`: random weights of SmolLM2-135M's shape,
or with `--shape llama-3.2-1b` of Llama-3.2-1B's.
"""

import argparse
import statistics
import tempfile
import time
from typing import Any

from load import model_folder

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.extras.bench.shapes import SHAPES

IMPLS = ("native", "transformers")
PROMPT = list(range(100, 1124))


def rate(llm: LLM, num_seqs: int, num_tokens: int) -> float:
    """Return decoded tokens a second, prompts of 16 included."""
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    prompts = [[7 * seq + place for place in range(16)] for seq in range(num_seqs)]
    start = time.perf_counter()
    llm.generate(prompts, params)
    return num_seqs * num_tokens / (time.perf_counter() - start)


def prompt_rate(llm: LLM) -> float:
    """Return a prompt's tokens a second."""
    start = time.perf_counter()
    llm.generate([PROMPT], SamplingParams(temperature=0, max_tokens=1))
    return len(PROMPT) / (time.perf_counter() - start)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quantization", choices=("int8", "int4"))
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {"model": model_folder(folder, asked.shape), "load_format": "dummy"}
        settings |= {"dtype": asked.dtype, "quantization": asked.quantization, "enable_prefix_caching": False}
        llms = {impl: LLM(model_impl=impl, max_model_len=1152, num_kv_blocks=400, **settings) for impl in IMPLS}
    cases = {"1 x 48": (1, 48), "8 x 32": (8, 32), "32 x 24": (32, 24)}
    rates: dict[tuple[str, str], list[float]] = {}
    for llm in llms.values():
        rate(llm, 2, 2)
    for _ in range(asked.turns):
        for impl, llm in llms.items():
            seen = {name: rate(llm, *case) for name, case in cases.items()} | {"prompt of 1,024": prompt_rate(llm)}
            for name, value in seen.items():
                rates.setdefault((name, impl), []).append(value)
    print(f"{asked.dtype}, {asked.quantization or 'not quantized'}; tokens/s, median of {asked.turns} turns")
    print("| sequences x tokens | native | transformers | share |\n|---|---:|---:|---:|")
    for name in (*cases, "prompt of 1,024"):
        native, through = (statistics.median(rates[name, impl]) for impl in IMPLS)
        print(f"| {name} | {native:.0f} | {through:.0f} | {through / native:.2f} |")


if __name__ == "__main__":
    main()
