"""A Llama served natively and through transformers, by turns: tokens a second of decodes, and of a prompt.

`python tests/bench/model_impl.py --dtype bfloat16` or `--quantization int4`: random weights of SmolLM2-135M's shape,
or with `--shape llama-3.2-1b` of Llama-3.2-1B's.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM

from splitfuse.engine import LLM, SamplingParams

_SMALL = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
_LARGER = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
SHAPES: dict[str, dict[str, Any]] = {"smollm2-135m": _SMALL, "llama-3.2-1b": _LARGER}
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
    parser.add_argument("--folder", type=Path, help="weights made before are used again")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        if not (folder / "config.json").exists():
            torch.manual_seed(0)
            LlamaForCausalLM(LlamaConfig(**SHAPES[asked.shape], tie_word_embeddings=True)).to(
                torch.bfloat16
            ).save_pretrained(folder)
            Tokenizer(WordLevel({"a": 0}, unk_token="a")).save(str(folder / "tokenizer.json"))
        settings: dict[str, Any] = {"dtype": asked.dtype, "max_model_len": 1152, "num_kv_blocks": 400}
        settings |= {"quantization": asked.quantization, "enable_prefix_caching": False}
        llms = {impl: LLM(str(folder), model_impl=impl, **settings) for impl in IMPLS}
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
