"""Canary: requests whose answers must never change, whatever runs beside them."""

import json
import random
from typing import Any

import httpx
from soak.operations import expect

LONG = {"prompt": "Once upon a time " * 8, "max_tokens": 60, "ignore_eos": True}
LIST = {"type": "array", "items": {"type": "integer"}}
# One canary per way of sampling.
BODIES: tuple[dict[str, Any], ...] = (
    {**LONG, "temperature": 0},
    {**LONG, "seed": 7, "n": 2, "top_p": 0.8},
    {**LONG, "seed": 5, "repetition_penalty": 1.2, "bad_words": ["the"], "logit_bias": {"300": 2}},
    {"prompt": "A list:", "seed": 3, "max_tokens": 40, "structured_outputs": {"json": LIST}},
)


class Canary:
    """Canary requests, with their first answers."""

    def __init__(self) -> None:
        self.num_equal = 0
        self._expected: dict[int, str] = {}

    async def ask(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        """Send a canary request. Raises AssertionError if the answer differs from the first one."""
        index = rng.randrange(len(BODIES))
        response = await client.post("/v1/completions", json=BODIES[index])
        expect(response, 200, 429)
        if response.status_code == 200:
            told = json.dumps([choice["text"] for choice in response.json()["choices"]])
            expected = self._expected.setdefault(index, told)
            assert told == expected, f"canary {index}: {told} instead of {expected}"
            self.num_equal += 1
