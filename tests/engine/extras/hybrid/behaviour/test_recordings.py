"""Recordings of a model with recurrent layers: its slots decide which prefixes are hits, so a replay has them too."""

import json
import random
from pathlib import Path

from hybrid_engine import HybridEngine

from splitfuse.engine.core.block_manager import CacheSpec
from splitfuse.engine.extras.simulation.recording import Recorder
from splitfuse.engine.extras.simulation.replay import replay

NUM_BLOCKS = 60


def record(path: Path) -> HybridEngine:
    """Record prompts that share beginnings, in a cache that is too small for all of them."""
    rng = random.Random(5)
    engine = HybridEngine(num_blocks=NUM_BLOCKS, num_checkpoints=4, max_num_seqs=8)
    shared = [[rng.randrange(1000) for _ in range(300)] for _ in range(3)]
    with path.open("w") as stream:
        cache = CacheSpec(NUM_BLOCKS, engine.config.block_size)
        engine.pipeline.core.scheduler.listeners.append(Recorder(stream, engine.config, cache, states=engine.spec))
        for _ in range(6):
            for start in shared:
                engine.request([*start, *(rng.randrange(1000) for _ in range(40))], 20)
            engine.run()
    return engine


def test_a_replay_decides_alike(tmp_path: Path) -> None:
    path = tmp_path / "load.jsonl"
    engine = record(path)
    assert 0 < engine.blocks.num_prefix_hits < engine.blocks.num_prefix_queries
    replayed = replay(path)
    assert replayed.difference is None
    assert replayed.num_steps > 50


def test_without_its_slots_it_would_not(tmp_path: Path) -> None:
    path = tmp_path / "load.jsonl"
    record(path)
    header, *lines = path.read_text().splitlines(keepends=True)
    plain = {name: value for name, value in json.loads(header).items() if name != "states"}
    path.write_text(json.dumps(plain) + "\n" + "".join(lines))
    assert replay(path).difference is not None
