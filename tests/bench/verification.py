"""Cost of a verification beside prompt passes over the same tokens, by turns: python tests/bench/verification.py MODEL.

Needs PYTHONPATH=tests/support. The prompt pass samples one token; a scored pass computes prompt logprobs, too.
"""

import argparse
import asyncio
import secrets
import statistics
import time
from collections.abc import Awaitable
from typing import Any

from engines import Collector
from receipt_requests import answered

from splitfuse.engine import AsyncEngine, EngineConfig, SamplingParams
from splitfuse.engine.extras.receipts.identity import Identity
from splitfuse.engine.extras.receipts.receipt import Receipt
from splitfuse.engine.extras.receipts.verification import verify

TEXT = (
    "Once upon a time there was a little dog who lived in a house near the park. Every day he went out to play with "
    "his friends, and in the evening he came home to eat. One day the dog saw a cat on the roof. "
)
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"seed": 1},
    "temperature 0.2, top_p 0.9": {"seed": 1, "temperature": 0.2, "top_p": 0.9},
    "penalties": {"seed": 1, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
}


async def seconds_of(work: Awaitable[Any]) -> float:
    """Return the processor time of this process during an awaitable, which a busy machine changes little."""
    start = time.process_time()
    await work
    return time.process_time() - start


async def prompt_pass(engine: AsyncEngine, token_ids: list[int], **fields: Any) -> None:
    """Compute a prompt, without the prefix cache."""
    params = SamplingParams(max_tokens=1, temperature=0, cache_salt=secrets.token_hex(8), **fields)
    collector = Collector()
    await engine.submit(token_ids, params, collector)
    await collector.ended.wait()


async def measure(args: argparse.Namespace) -> None:
    """Print a line of the table per kind of request."""
    engine = AsyncEngine(EngineConfig(model=args.model, dtype=args.dtype, max_model_len=2 * args.num_tokens))
    await engine.start()
    assert engine.tokenizer is not None
    identity = await asyncio.to_thread(Identity.of, engine)
    prompt = engine.tokenizer.encode(TEXT * args.num_tokens)[: args.num_tokens]
    print(
        "| request | prompt pass ms | scored ms | verification ms | x prompt pass | x scored |\n"
        "|---|---:|---:|---:|---:|---:|"
    )
    for name, fields in KINDS.items():
        params = SamplingParams(max_tokens=args.num_tokens - 1, ignore_eos=True, **fields)
        receipt = Receipt.read((await answered(engine, identity, prompt, params)).to_dict())
        token_ids = prompt + list(receipt.outputs[0].token_ids)
        turns = [
            (
                await seconds_of(prompt_pass(engine, token_ids)),
                await seconds_of(prompt_pass(engine, token_ids, prompt_logprobs=0)),
                await seconds_of(verify(engine, receipt, identity)),
            )
            for _ in range(args.turns)
        ]
        plain, scored, verified = (statistics.median(times) * 1e3 for times in zip(*turns, strict=True))
        ratios = [statistics.median(turn[2] / turn[index] for turn in turns) for index in (0, 1)]
        print(
            f"| {name} | {plain:.0f} | {scored:.0f} | {verified:.0f} | {ratios[0]:.2f} | {ratios[1]:.2f} |", flush=True
        )
    await engine.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--num-tokens", type=int, default=256, help="of the prompt, and nearly of the output")
    parser.add_argument("--turns", type=int, default=5)
    asyncio.run(measure(parser.parse_args()))
