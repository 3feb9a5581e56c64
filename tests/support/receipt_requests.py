"""Random requests of every kind for receipts, and their answers with receipts."""

import random
from typing import Any

from engines import Collector

from splitfuse.engine import AsyncEngine, CompletionOutput, SamplingParams
from splitfuse.engine.core.outputs import OutputDelta
from splitfuse.engine.extras.receipts.identity import Identity
from splitfuse.engine.extras.receipts.receipt import Receipt, ReceiptOutput

_TEXTS = ("Once upon a time", "The little dog", "A cat sat on", "Tom and Lily went to the park. They", "One day,")
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["age"],
}


def random_params(rng: random.Random) -> dict[str, Any]:
    """Return the fields of a request, greedy or sampled, with any mix of the fields that change tokens."""
    fields: dict[str, Any] = {"max_tokens": rng.randint(1, 48), "temperature": rng.choice([0, 0.5, 1.0, 1.7])}
    choices: dict[str, Any] = {
        "seed": rng.randint(-(2**63), 2**64 - 1),
        "top_p": rng.uniform(0.3, 1.0),
        "top_k": rng.randint(1, 50),
        "min_p": rng.uniform(0, 0.2),
        "repetition_penalty": rng.uniform(0.8, 1.6),
        "presence_penalty": rng.uniform(-1, 1),
        "frequency_penalty": rng.uniform(-1, 1),
        "logit_bias": {str(rng.randrange(1000)): rng.uniform(-10, 5) for _ in range(3)},
        "bad_words": ["the", "was"],
        "stop": rng.choice([["."], ["and", "a"]]),
        "stop_token_ids": [rng.randrange(1000) for _ in range(20)],
        "min_tokens": rng.randint(0, fields["max_tokens"]),
        "ignore_eos": True,
        "n": rng.randint(1, 3),
        "include_stop_str_in_output": True,
        "logprobs": rng.randint(0, 3),
    }
    fields |= {name: choices[name] for name in rng.sample(sorted(choices), rng.randint(0, 5))}
    if rng.random() < 0.25:
        kinds = ({"json": _SCHEMA}, {"regex": "[a-z ]{5,30}"}, {"choice": ["yes, it is", "no"]}, {"json_object": True})
        fields["structured_outputs"] = rng.choice(kinds)
    return fields


def random_prompt(rng: random.Random) -> str:
    """Return a prompt of 4 to some 200 tokens."""
    return " ".join(rng.choices(_TEXTS, k=rng.choice([1, 2, 5, 30])))


async def answered(engine: AsyncEngine, identity: Identity, prompt: str | list[int], params: SamplingParams) -> Receipt:
    """Return the receipt of an answer."""
    outputs = [CompletionOutput(index) for index in range(params.n)]
    collector = Collector(params.n)

    def sink(delta: OutputDelta) -> None:
        outputs[delta.index].add(delta)
        collector(delta)

    request = await engine.submit(prompt, params, sink)
    await collector.ended.wait()
    return Receipt.of(
        request.params,
        model="demo",
        created=1_700_000_000,
        identity=identity,
        seed=request.seed,
        prompt_token_ids=tuple(request.prompt_token_ids),
        max_tokens=request.max_tokens,
        outputs=[ReceiptOutput(tuple(o.token_ids), o.finish_reason or "", o.stop_reason) for o in outputs],
    )
