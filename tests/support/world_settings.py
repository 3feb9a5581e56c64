"""Settings that a seed decides: the engine's settings and pools, the kinds of requests, and the faults."""

import hashlib
import io
import random
from dataclasses import dataclass
from typing import Any

from fake_model import VOCAB_SIZE

from splitfuse.engine.config import EngineConfig, ResolvedConfig
from splitfuse.engine.config.setting import settings_of
from splitfuse.engine.core.policies import BATCHING_POLICIES, QUEUE_ORDERS

TENANTS = ("ann", "ben", "cat", "dan")


@dataclass(frozen=True)
class WorldSettings:
    """Settings of one world, without its events."""

    config: ResolvedConfig
    num_blocks: int
    num_host_blocks: int
    seconds_per_block: float | None  # apparent cost of swapping a block
    longest: int  # maximum of prompt and output tokens together
    tenants: tuple[str, ...]
    skew: float  # 1: tenants send equally; more: the first sends most
    hash_bits: int  # bits of the prefix cache's hash; few bits make collisions
    max_tenants: int  # number of the fair queue's counters
    prompt_parts: tuple[tuple[int, ...], ...]  # parts of prompts, which so have blocks in common
    max_drafts: int  # 0: no drafts
    chooses_lengths: bool  # True: draft lengths follow cost and gain

    @property
    def hash_is_weak(self) -> bool:
        return self.hash_bits < 256

    def hash(self, data: bytes) -> bytes:
        """Return sha256, or its first bits."""
        digest = hashlib.sha256(data).digest()
        return bytes([digest[0] >> 8 - self.hash_bits]) if self.hash_is_weak else digest

    def __repr__(self) -> str:
        names: tuple[str, ...]
        names = ("block_size", "max_num_batched_tokens", "long_prefill_token_threshold", "max_num_seqs")
        names += ("batching_policy", "scheduling_policy", "preemption_mode", "enable_prefix_caching", "target_itl_ms")
        shown = ", ".join(f"{name}={getattr(self.config, name, None)!r}" for name in names)
        return (
            f"{shown}, num_blocks={self.num_blocks}, num_host_blocks={self.num_host_blocks}, longest={self.longest}, "
            f"tenants={len(self.tenants)}, hash_bits={self.hash_bits}, max_drafts={self.max_drafts}"
        )


def random_settings(rng: random.Random) -> WorldSettings:
    """Return random values of all settings, and pools that are mostly too small for all at once."""
    longest = rng.choice([16, 40, 40, 100])
    block_size = rng.choice([1, 2, 4, 8, 16] if longest <= 40 else [4, 8, 16])
    smallest = -(-longest // block_size)
    num_host_blocks = rng.choice([0, 0, rng.randint(1, smallest), 4 * smallest])
    is_weak = block_size >= 4 and rng.random() < 0.15
    alphabet = VOCAB_SIZE if is_weak else rng.choice([2, 4, VOCAB_SIZE])
    return WorldSettings(
        config=_config(rng, block_size, has_host=num_host_blocks > 0),
        num_blocks=smallest
        + rng.choice([0, 1, smallest // 2, smallest, 3 * smallest, 6 * smallest])
        + 100 * (rng.random() < 0.08),
        num_host_blocks=num_host_blocks,
        seconds_per_block=rng.choice([None, 1e-4, 1e-2]),
        longest=longest,
        tenants=TENANTS[: rng.choice([1, 2, 4, 4])],
        skew=rng.choice([1.0, 2.0]),
        hash_bits=rng.randint(4, 8) if is_weak else 256,
        max_tenants=rng.choice([1, 10_000, 10_000]),
        prompt_parts=tuple(
            tuple(rng.randrange(alphabet) for _ in range(block_size * rng.choice([1, 1, 2]) + rng.choice([0, 0, 1])))
            for _ in range(5)
        ),
        max_drafts=rng.choice([0, 1, rng.randint(2, 12)]),
        chooses_lengths=rng.random() < 0.3,
    )


def _config(rng: random.Random, block_size: int, *, has_host: bool) -> ResolvedConfig:
    scheduling_policy, seed = rng.choice(list(QUEUE_ORDERS)), rng.getrandbits(32)
    weights = rng.choice([None, {"ann": 1, "ben": rng.choice([2, 5]), "cat": 1.5}])
    return ResolvedConfig.of(
        EngineConfig(
            block_size=block_size,
            max_num_batched_tokens=rng.choice(
                [rng.randint(1, 8), rng.randint(9, 40), rng.randint(9, 40), rng.randint(41, 120)]
            ),
            long_prefill_token_threshold=rng.choice([0, 0, rng.randint(1, 8), rng.randint(4, 24)]),
            max_num_seqs=rng.choice([rng.randint(1, 4), *[rng.randint(4, 16)] * 3]),
            batching_policy=rng.choice(["splitfuse", *BATCHING_POLICIES]),
            scheduling_policy=scheduling_policy,
            tenant_weights=weights if scheduling_policy == "fair" else None,
            max_seqs_per_key=random.Random(seed).choice([None] * 6 + [1, 3]),
            enable_prefix_caching=rng.random() < 0.7,
            preemption_mode=rng.choice(["auto", "recompute", "swap", "swap"]) if has_host else "recompute",
            swap_space=1.0 if has_host else 0.0,
            **_known(target_itl_ms=rng.choice([None, None, "auto", 5.0])),
            seed=seed,
        ),
        device="cpu",
    )


def _known(**values: Any) -> dict[str, Any]:
    """Leave out settings of extras that are not there."""
    return {name: value for name, value in values.items() if name in settings_of(EngineConfig)}


@dataclass(frozen=True)
class Conditions:
    """Conditions of some steps: probabilities of arrivals and faults in a step."""

    arrival: float
    most_unfinished: int
    follow_up: float  # share of prompts that begin like an earlier request
    greedy: float  # share of prompts: as long an output as possible after a short prompt
    several: float  # share of prompts: n > 1
    deadline: float  # share of prompts: an end by the clock
    late_text: float  # share of prompts: a text that may end the request, or fail
    abort: float
    mass_abort: float
    culprit: float
    not_finite: float
    raises: float
    corruption: float
    clock_jump: float


def random_conditions(rng: random.Random) -> Conditions:
    """Return half of the faults, in random strength: all faults at all times would hide one another."""

    def perhaps(strength: float) -> float:
        return rng.choice([0.0, strength * rng.random()])

    return Conditions(
        arrival=rng.choice([0.1, 0.4, 0.9]), most_unfinished=rng.choice([8, 20, 50]), follow_up=rng.random(),
        greedy=rng.random(), several=perhaps(0.6), deadline=perhaps(0.3), late_text=perhaps(0.6), abort=perhaps(0.04),
        mass_abort=perhaps(0.005), culprit=perhaps(0.02), not_finite=perhaps(0.02), raises=perhaps(0.03),
        corruption=perhaps(0.02), clock_jump=perhaps(0.01),
    )  # fmt: skip


CALM = Conditions(*[0.0] * 14)  # type: ignore[arg-type]


def can_be_recorded(seed: int) -> bool:
    """True if all choices are settings of an engine, so that a recording holds them."""
    settings = random_settings(random.Random(seed))
    return not settings.hash_is_weak and settings.max_tenants >= len(settings.tenants)


def seeds(text: str) -> range:
    """Parse a count of seeds from 0 on, or a first and a last seed."""
    first, _, last = text.rpartition("-")
    return range(int(first), int(last) + 1) if first else range(int(last))


class Recording(io.StringIO):
    """File whose text is read after the engine's end."""

    def close(self) -> None: ...
