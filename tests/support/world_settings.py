"""What a seed decides: an engine's settings and pools, the kinds of requests that come, and what goes wrong."""

import hashlib
import io
import random
from dataclasses import dataclass

from fake_model import VOCAB_SIZE

from splitfuse.engine.config import EngineConfig
from splitfuse.engine.core.policies import BATCHING_POLICIES, QUEUE_ORDERS

TENANTS = ("ann", "ben", "cat", "dan")


@dataclass(frozen=True)
class WorldSettings:
    """One world, but for what happens in it."""

    config: EngineConfig
    num_blocks: int
    num_host_blocks: int
    seconds_per_block: float | None  # what swapping one seems to cost
    longest: int  # tokens of prompt and output together
    tenants: tuple[str, ...]
    skew: float  # 1: tenants send alike; more: the first sends most
    hash_bits: int  # of the prefix cache; few make it find what it must not believe
    max_tenants: int  # counters kept by the fair queue
    prompt_parts: tuple[tuple[int, ...], ...]  # from which prompts are joined, so that they have blocks in common
    max_drafts: int  # 0: no drafts
    chooses_lengths: bool  # of drafts, by what they cost and bring

    @property
    def hash_is_weak(self) -> bool:
        return self.hash_bits < 256

    def hash(self, data: bytes) -> bytes:
        """sha256, or what is left of it."""
        digest = hashlib.sha256(data).digest()
        return bytes([digest[0] >> 8 - self.hash_bits]) if self.hash_is_weak else digest

    def __repr__(self) -> str:
        names = ("block_size", "max_num_batched_tokens", "long_prefill_token_threshold", "max_num_seqs")
        names += ("batching_policy", "scheduling_policy", "preemption_mode", "enable_prefix_caching", "target_itl_ms")
        shown = ", ".join(f"{name}={getattr(self.config, name)!r}" for name in names)
        return (
            f"{shown}, num_blocks={self.num_blocks}, num_host_blocks={self.num_host_blocks}, longest={self.longest}, "
            f"tenants={len(self.tenants)}, hash_bits={self.hash_bits}, max_drafts={self.max_drafts}"
        )


def random_settings(rng: random.Random) -> WorldSettings:
    """Everything that can be set, and pools that are mostly too small for all at once."""
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


def _config(rng: random.Random, block_size: int, *, has_host: bool) -> EngineConfig:
    scheduling_policy = rng.choice(list(QUEUE_ORDERS))
    weights = rng.choice([None, {"ann": 1, "ben": rng.choice([2, 5]), "cat": 1.5}])
    return EngineConfig(
        block_size=block_size,
        max_num_batched_tokens=rng.choice(
            [rng.randint(1, 8), rng.randint(9, 40), rng.randint(9, 40), rng.randint(41, 120)]
        ),
        long_prefill_token_threshold=rng.choice([0, 0, rng.randint(1, 8), rng.randint(4, 24)]),
        max_num_seqs=rng.choice([rng.randint(1, 4), *[rng.randint(4, 16)] * 3]),
        batching_policy=rng.choice(["splitfuse", *BATCHING_POLICIES]),
        scheduling_policy=scheduling_policy,
        tenant_weights=weights if scheduling_policy == "fair" else None,
        enable_prefix_caching=rng.random() < 0.7,
        preemption_mode=rng.choice(["auto", "recompute", "swap", "swap"]) if has_host else "recompute",
        swap_space=1.0 if has_host else 0.0,
        target_itl_ms=rng.choice([None, None, None, 5.0]),
        seed=rng.getrandbits(32),
    )


@dataclass(frozen=True)
class Conditions:
    """What comes and goes wrong for a while; each number is the probability of it in a step."""

    arrival: float
    most_unfinished: int
    follow_up: float  # of the prompts that come: one that begins as an earlier request did
    greedy: float  # of those: an output as long as it can be, behind a short prompt
    several: float  # of those: n > 1
    deadline: float  # of those: ends by a clock
    late_text: float  # of those: its text may end it, or fail
    abort: float
    mass_abort: float
    culprit: float
    not_finite: float
    raises: float
    corruption: float
    clock_jump: float


def random_conditions(rng: random.Random) -> Conditions:
    """Half of the faults, in a random strength: all of them all the time would hide one another."""

    def perhaps(strength: float) -> float:
        return rng.choice([0.0, strength * rng.random()])

    return Conditions(
        arrival=rng.choice([0.1, 0.4, 0.9]),
        most_unfinished=rng.choice([8, 20, 50]),
        follow_up=rng.random(),
        greedy=rng.random(),
        several=perhaps(0.6),
        deadline=perhaps(0.3),
        late_text=perhaps(0.6),
        abort=perhaps(0.04),
        mass_abort=perhaps(0.005),
        culprit=perhaps(0.02),
        not_finite=perhaps(0.02),
        raises=perhaps(0.03),
        corruption=perhaps(0.02),
        clock_jump=perhaps(0.01),
    )


CALM = Conditions(*[0.0] * 14)  # type: ignore[arg-type]


def can_be_recorded(seed: int) -> bool:
    """Whether all that was chosen is a setting of an engine, so that a recording holds it."""
    settings = random_settings(random.Random(seed))
    return not settings.hash_is_weak and settings.max_tenants >= len(settings.tenants)


class Recording(io.StringIO):
    """A file whose text is wanted when the engine has gone."""

    def close(self) -> None: ...
