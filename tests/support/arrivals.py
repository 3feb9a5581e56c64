"""Arrivals: random requests for a world, from the engine's own input processor."""

import random
from collections import deque
from types import SimpleNamespace
from typing import Any

from beside_core import InputProcessor, TokenizedPrompt
from fake_model import VOCAB_SIZE
from world_settings import Conditions, WorldSettings

from splitfuse.engine.core.request import Request
from splitfuse.engine.core.sampling_params import SamplingParams

_END_TOKENS = range(16)


class Arrivals:
    """Source of random prompts: a prompt begins like an earlier one, is joined from a few parts, or is new."""

    def __init__(self, rng: random.Random, settings: WorldSettings) -> None:
        self._rng = rng
        self._settings = settings
        model_config: Any = SimpleNamespace(
            vocab_size=VOCAB_SIZE, eos_token_ids=_END_TOKENS, max_len_limit=settings.longest
        )
        self._input_processor = InputProcessor(
            tokenizer=None,
            grammars=None,
            model_config=model_config,
            max_model_len=settings.longest,
            max_cache_tokens=settings.num_blocks * settings.config.block_size,
            seed=settings.config.seed,
        )
        self._past: deque[tuple[str, list[int]]] = deque(maxlen=12)  # tenants and tokens of earlier requests
        self._num_requests = 0
        self._goals = random.Random(settings.config.seed)
        self._has_goals = self._goals.random() < 0.5

    def random_requests(self, conditions: Conditions, now: float) -> list[Request]:
        """Return the requests for the outputs of one prompt."""
        rng, longest, tenants = self._rng, self._settings.longest, self._settings.tenants
        tenant = tenants[int(len(tenants) * rng.random() ** self._settings.skew)]
        prompt = self._prompt(tenant, conditions)
        max_tokens = rng.randint(1, longest - len(prompt))
        if rng.random() < conditions.greedy:
            prompt = prompt[: longest // 2]
            max_tokens = longest - len(prompt)
        self._num_requests += 1
        tokenized = TokenizedPrompt(prompt, self._params(max_tokens, conditions))
        requests = self._input_processor.requests(f"r{self._num_requests}", tokenized, now=now, tenant=tenant)
        self._past.append((tenant, requests[0].token_ids))
        return requests

    def _params(self, max_tokens: int, conditions: Conditions) -> SamplingParams:
        rng = self._rng
        has_deadline = rng.random() < conditions.deadline
        return SamplingParams(
            n=rng.randint(2, 4) if rng.random() < conditions.several else 1,
            max_tokens=max_tokens,
            min_tokens=rng.choice([0, 0, rng.randint(0, max_tokens)]),
            ignore_eos=rng.random() < 0.5,
            priority=rng.randint(-1, 1),
            timeout_ms=rng.choice([rng.randint(1, 20), rng.randint(21, 1000)]) if has_deadline else None,
            max_queue_ms=rng.randint(1, 200) if has_deadline and rng.random() < 0.5 else None,
            ttft_ms=self._goals.choice([None, self._goals.randint(1, 60), 500]) if self._has_goals else None,
            itl_ms=self._goals.choice([None, self._goals.randint(1, 20)]) if self._has_goals else None,
        )

    def _prompt(self, tenant: str, conditions: Conditions) -> list[int]:
        rng, settings = self._rng, self._settings
        prompt: list[int] = []
        # Behind a weak hash no block may come again after another beginning: only sha256 itself distinguishes them.
        if self._past and rng.random() < conditions.follow_up:
            other, tokens = rng.choice(self._past)
            if other == tenant or not settings.hash_is_weak:
                prompt = tokens[: rng.randint(1, len(tokens))]
        elif not settings.hash_is_weak:
            for _ in range(rng.randint(0, 4)):
                prompt += rng.choice(settings.prompt_parts)
        prompt += [rng.randrange(VOCAB_SIZE) for _ in range(rng.choice([0, 1, rng.randint(0, settings.longest)]))]
        return prompt[: rng.randint(settings.longest // 2, settings.longest - 1)] or [rng.randrange(VOCAB_SIZE)]
