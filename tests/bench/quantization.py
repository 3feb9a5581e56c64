"""What --quantization costs the demo model: perplexity of text that it was not trained on, by prompt_logprobs.

`python tests/bench/quantization.py [--documents 200]`: documents of the training grammar under a seed of their own, as
the model card's "held-out loss, generated".
"""

import argparse
import math
import sys
from itertools import islice

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.config import DEMO_FOLDER

HELD_OUT_SEED = 1_000_003  # the training script counts up from 0


def texts(count: int) -> list[str]:
    """The first `count` held-out documents."""
    sys.path.insert(0, str(DEMO_FOLDER))  # whose scripts import each other as they would from there
    from corpus import documents

    return list(islice(documents(HELD_OUT_SEED), count))


def perplexity(prompts: list[str], *, quantization: str | None) -> tuple[float, int]:
    """(e^mean negative log-likelihood, tokens that count): all tokens but the first of each prompt."""
    llm = LLM(quantization=quantization)
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    logprobs = [
        scored.logprob
        for output in llm.generate(prompts, params)
        for scored in output.prompt_logprobs or []
        if scored is not None
    ]
    return math.exp(-sum(logprobs) / len(logprobs)), len(logprobs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=200)
    prompts = texts(parser.parse_args().documents)
    plain, count = perplexity(prompts, quantization=None)
    print(f"{count} tokens\nas it is  {plain:.4f}")
    for name in ("int8", "int4"):
        found, _ = perplexity(prompts, quantization=name)
        print(f"{name}      {found:.4f}  {100 * (found / plain - 1):+.2f} %", flush=True)


if __name__ == "__main__":
    main()
