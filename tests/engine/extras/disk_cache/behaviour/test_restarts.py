"""A prompt that an earlier process knew is not computed again, and no file can change an answer."""

import asyncio
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from cache_file_mutations import MUTATIONS, SavedFiles
from engines import collect, running_engine
from safetensors.torch import load_file, save_file
from tiny_models import save_model

from splitfuse.engine import LLM, RequestOutput, SamplingParams
from splitfuse.engine.config import EngineConfig
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.extras.disk_cache import disk_cache
from splitfuse.engine.extras.disk_cache.disk_cache import DiskCache
from splitfuse.engine.extras.disk_cache.entry_folder import EntryFolder
from splitfuse.engine.extras.weight_updates.live_model import restart

PARAMS = SamplingParams(temperature=0, max_tokens=6, logprobs=4, ignore_eos=True)


def tokens(seed: int, count: int = 200) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(20, 200) for _ in range(count)]


PROMPT = tokens(3)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the hash of the weights, without which nothing is written: a busy machine may take longer than 0.3 s."""
    monkeypatch.setattr(disk_cache, "_NAMESPACE_WAIT_S", 60.0)


@pytest.fixture(scope="module")
def hybrid_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("hybrid")
    save_model("qwen3-next", folder)
    return str(folder)


@pytest.fixture(params=["attention", "hybrid"])
def model(request: pytest.FixtureRequest, tiny_folder: str, hybrid_folder: str) -> str:
    return tiny_folder if request.param == "attention" else hybrid_folder


@contextmanager
def engine(model: str, cache: Path, **settings: Any) -> Iterator[LLM]:
    """One process's engine. It writes what it knows at its end."""
    defaults = {"dtype": "float32", "device": "cpu", "num_kv_blocks": 128, "max_num_seqs": 4, "num_threads": 1}
    with LLM(model, **{**defaults, **settings}, prefix_cache_dir=str(cache)) as llm:
        yield llm


def answer(llm: LLM, prompt: list[int] = PROMPT, **fields: Any) -> RequestOutput:
    (output,) = llm.generate([prompt], PARAMS if not fields else SamplingParams(**{**PARAMS.to_dict(), **fields}))
    llm.engine.core.scheduler.check()
    return output


def same(one: RequestOutput, other: RequestOutput) -> bool:
    """True if tokens and logprobs are equal to the bit."""
    return (one.outputs[0].token_ids, one.outputs[0].logprobs) == (
        other.outputs[0].token_ids,
        other.outputs[0].logprobs,
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_known_prompt_is_not_computed_again(model: str, dtype: str, tmp_path: Path) -> None:
    with engine(model, tmp_path / "cache", dtype=dtype) as llm:
        cold = answer(llm)
        tensors = [tensor.clone() for tensor in llm.engine.runner.cache.block_tensors]
        tables = list(llm.engine.core.blocks.cache._block_of)
    with engine(model, tmp_path / "cache", dtype=dtype) as llm:
        warm = answer(llm)
        known = llm.engine.core.blocks.cache._block_of
        assert same(cold, warm)
        assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 192)
        assert set(tables) <= set(known)
        assert len(tensors) == len(llm.engine.runner.cache.block_tensors)
        counts = [
            llm.engine.part(DiskCache).stats()[f"prefix_cache_disk_{name}"] for name in ("hits", "damaged", "failure")
        ]
        assert counts == [192, 0, None]
        further = answer(llm, [*PROMPT, *warm.outputs[0].token_ids, 30, 31])
    assert further.num_cached_tokens >= 192


def test_blocks_come_back_to_the_bit(tiny_folder: str, tmp_path: Path) -> None:
    found: list[dict[bytes, list[torch.Tensor]]] = []
    for _ in range(2):
        with engine(tiny_folder, tmp_path) as llm:
            answer(llm)
            caches = llm.engine.runner.cache.block_tensors
            blocks = llm.engine.core.blocks.cache._block_of
            found.append({key: [cache[block].clone() for cache in caches] for key, block in blocks.items()})
    cold, warm = found
    assert cold.keys() == warm.keys()
    assert all(torch.equal(one, other) for key in cold for one, other in zip(cold[key], warm[key], strict=True))


def test_other_weights_and_settings_are_a_miss(tiny_folder: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    save_model("llama-gqa-tied", other)
    tensors = load_file(other / "model.safetensors")
    moved = {name: 1.25 * tensor if "k_proj" in name else tensor for name, tensor in tensors.items()}
    save_file(moved, other / "model.safetensors")
    with engine(tiny_folder, tmp_path / "cache") as llm:
        answer(llm)
    for model, settings in (
        (str(other), {}),
        (tiny_folder, {"dtype": "bfloat16"}),
        (tiny_folder, {"quantization": "int8"}),
        (tiny_folder, {"block_size": 8}),
        (tiny_folder, {"kv_cache_dtype": "int8"}),
    ):
        with engine(model, tmp_path / "cache", **settings) as llm:
            assert answer(llm).num_cached_tokens == 0, settings
            assert llm.engine.part(DiskCache).num_damaged == 0


def test_an_update_of_the_weights_changes_what_is_found(tiny_folder: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    save_model("llama-gqa-tied", other)
    tensors = {name: 1.5 * tensor for name, tensor in load_file(other / "model.safetensors").items()}
    save_file(tensors, other / "model.safetensors")

    def changed(llm: LLM, source: Any) -> RequestOutput:
        llm.update_weights(source)
        for _ in range(100):
            if llm.engine.part(DiskCache)._namespace is not None or not isinstance(source, Path):
                break
            time.sleep(0.01)  # a thread hashes the weights
        return answer(llm)

    with engine(tiny_folder, tmp_path / "cache") as llm:
        first = answer(llm)
        llm.engine.part(DiskCache).flush()
        second = changed(llm, other)
        assert second.num_cached_tokens == 0
        assert not same(first, second)
        llm.engine.part(DiskCache).flush()
        back = changed(llm, Path(tiny_folder))
        assert same(first, back)
        assert back.num_cached_tokens == 192  # from disk: the cache in memory was emptied
        num_entries = len(llm.engine.part(DiskCache)._writes.index)
        assert changed(llm, tensors.items()).num_cached_tokens == 0
        llm.engine.part(DiskCache).flush()
        assert len(llm.engine.part(DiskCache)._writes.index) == num_entries  # tensors have no name to find them by


def test_tenants_and_salts_find_nothing_of_each_other(tiny_folder: str, tmp_path: Path) -> None:
    async def cached(tenant: str, **fields: Any) -> int:
        """Ask in an engine of its own."""
        deltas: asyncio.Queue[Any] = asyncio.Queue()
        settings = {"num_kv_blocks": 128, "max_num_seqs": 4, "prefix_cache_dir": str(tmp_path)}
        async with running_engine(tiny_folder, **settings) as engine:
            params = SamplingParams(temperature=0, max_tokens=2, **fields)
            await engine.submit(PROMPT, params, deltas.put_nowait, tenant=tenant)
            while (delta := await deltas.get()).finish_reason is None:
                pass
            assert "prefix_cache_disk_hits" in engine.stats()
        return int(delta.metrics.num_cached_tokens)

    async def run() -> list[int]:
        return [await cached("a"), await cached("b"), await cached("a", cache_salt="s"), await cached("a")]

    assert asyncio.run(run()) == [0, 0, 0, 192]


def test_no_file_changes_an_answer(model: str, tmp_path: Path) -> None:
    """A sample; `make cache-files` tries 10,000."""
    with engine(model, tmp_path / "cache") as llm:
        disk, expected = llm.engine.part(DiskCache), answer(llm)
        disk.flush()
        files, num_cached = SavedFiles(tmp_path / "cache"), []
        for seed in range(3 * len(MUTATIONS)):
            files.restore()
            done = files.mutate(random.Random(seed))
            restart(llm.engine.core.scheduler)
            found = answer(llm)
            assert same(found, expected), done
            num_cached.append(found.num_cached_tokens)
            disk.flush()
        assert (
            len(set(num_cached)) > 3 or len(llm.engine.core.blocks.companions) > 1
        )  # one state, behind the last block
        assert disk.num_damaged > len(MUTATIONS)


def test_a_full_disk_ends_writing_with_a_line(
    tiny_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: EntryFolder, path: str, pieces: object, *, used_ns: int) -> None:
        num_tries.append(1)
        raise OSError(28, "No space left on device")

    num_tries: list[int] = []
    monkeypatch.setattr(EntryFolder, "write", full)
    with caplog.at_level(logging.WARNING), engine(tiny_folder, tmp_path) as llm:
        first = answer(llm)
        llm.engine.part(DiskCache).flush()
        assert same(first, answer(llm))
        llm.engine.part(DiskCache).flush()
        assert llm.engine.part(DiskCache).stats()["prefix_cache_disk_failure"]
    assert [record.message for record in caplog.records if "the disk is full" in record.message]
    assert len(num_tries) == 1


def test_the_disk_holds_no_more_than_it_may(tiny_folder: str, tmp_path: Path) -> None:
    with engine(tiny_folder, tmp_path) as llm:
        answer(llm)
        llm.engine.part(DiskCache).flush()
        entry_bytes = llm.engine.part(DiskCache)._writes.index.num_bytes // 12
    most = 20 * entry_bytes
    for seed in range(4):
        with engine(tiny_folder, tmp_path, prefix_cache_disk_bytes=most) as llm:
            answer(llm, tokens(seed))
            llm.engine.part(DiskCache).flush()
            llm.engine.part(DiskCache)._writes.index.check()
        sizes = [path.stat().st_size for path in tmp_path.glob("*/*/*")]
        assert sum(sizes) <= most
        assert len(sizes) == min(20, 12 * (seed + 2))


def test_a_second_engine_reads_what_the_first_writes(tiny_folder: str, tmp_path: Path) -> None:
    with engine(tiny_folder, tmp_path) as first, engine(tiny_folder, tmp_path) as second:
        expected = answer(first)
        first.engine.part(DiskCache).flush()
        found = answer(second)
        assert same(found, expected)
        assert found.num_cached_tokens == 192
        answer(second, PROMPT[::-1])
        second.engine.part(DiskCache).flush()
        writers = [llm.engine.part(DiskCache).stats()["prefix_cache_disk_is_writer"] for llm in (first, second)]
        assert writers == [True, False]
        assert answer(first, PROMPT[::-1]).num_cached_tokens == 0


_KILLED = """
import sys
from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.extras.disk_cache import disk_cache
from splitfuse.engine.extras.disk_cache.disk_cache import DiskCache
disk_cache._NAMESPACE_WAIT_S = 60.0
llm = LLM(sys.argv[1], dtype="float32", device="cpu", num_kv_blocks=128, max_num_seqs=4, num_threads=1,
          prefix_cache_dir=sys.argv[2])
for seed in range(10**6):
    llm.generate([[20 + (seed * 31 + i * i) % 180 for i in range(200)]], SamplingParams(temperature=0, max_tokens=1))
    print(seed, flush=True)
    llm.engine.part(DiskCache).flush()
"""


def test_kill_9_while_writing_leaves_only_whole_entries(tiny_folder: str, tmp_path: Path) -> None:
    for num_answers in (2, 3):
        program = [sys.executable, "-c", _KILLED, tiny_folder, str(tmp_path)]
        with subprocess.Popen(program, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
            assert process.stdout is not None
            for _ in range(num_answers):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
    whole = next(path for path in tmp_path.glob("*/*/*") if not path.suffix)
    whole.with_name(f"{'a' * 40}.draft").write_bytes(whole.read_bytes()[:100])  # as a kill while writing leaves it
    prompt = [20 + (i * i) % 180 for i in range(200)]
    with engine(tiny_folder, tmp_path) as llm:
        found = answer(llm, prompt)
        assert llm.engine.part(DiskCache).num_damaged == 0
        assert found.num_cached_tokens == 192
        answer(llm, PROMPT)  # the first write takes away what killed writers left
        llm.engine.part(DiskCache).flush(60)
    assert not list(tmp_path.glob("*/*/*.draft"))
    with engine(tiny_folder, tmp_path / "empty") as llm:
        assert same(found, answer(llm, prompt))


def test_preemption_and_many_requests_agree_with_a_cold_engine(model: str, tmp_path: Path) -> None:
    rng = random.Random(11)
    starts = [[rng.randrange(20, 200) for _ in range(90)] for _ in range(3)]
    prompts = [[*rng.choice(starts), *(rng.randrange(20, 200) for _ in range(rng.randrange(1, 40)))] for _ in range(24)]
    sizes = {"num_kv_blocks": 40, "max_num_seqs": 8, "max_num_batched_tokens": 64}

    def answers(cache: Path) -> list[tuple[Any, Any]]:
        with engine(model, cache, **sizes) as llm:
            outputs = llm.generate(prompts, PARAMS)
            llm.engine.core.scheduler.check()
            if cache == tmp_path / "warm":
                hits.append(llm.engine.part(DiskCache).num_hit_tokens)
            return [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs]

    hits: list[int] = []
    expected = answers(tmp_path / "cold")
    assert answers(tmp_path / "warm") == expected
    assert answers(tmp_path / "warm") == expected
    assert hits[1] > 0


def test_a_failed_row_is_not_kept(tiny_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(tiny_folder, tmp_path) as llm:
        answer(llm)
        llm.engine.part(DiskCache).flush()
        request_hashes = list(llm.engine.core.blocks.cache._block_of)
        assert len(list(tmp_path.glob("*/*/*"))) == len(request_hashes)
        llm.engine.part(DiskCache).forget(request_hashes, "")
        llm.engine.part(DiskCache).flush()
    assert not list(tmp_path.glob("*/*/*"))


def test_a_disk_that_hangs_costs_one_request_some_time(
    tiny_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, num_reads = threading.Event(), []

    def hanging(self: EntryFolder, path: str, into: memoryview, *, used_ns: int) -> None:
        num_reads.append(1)
        release.wait(60)

    async def run() -> None:
        settings = {"num_kv_blocks": 128, "max_num_seqs": 4, "prefix_cache_dir": str(tmp_path)}
        async with running_engine(tiny_folder, **settings) as engine:
            for _ in range(2):
                (output,) = await collect(engine, PROMPT, SamplingParams(temperature=0, max_tokens=2))
                assert len(output.token_ids) == 2
            release.set()

    monkeypatch.setattr(disk_cache, "_READ_S", 0.05)
    monkeypatch.setattr(EntryFolder, "read", hanging)
    asyncio.run(run())
    assert len(num_reads) == 1


def test_what_is_not_built_is_refused(tmp_path: Path) -> None:
    folder = str(tmp_path)
    for settings in ({"enable_prefix_caching": False}, {"record": str(tmp_path / "run.jsonl")}):
        with pytest.raises(ConfigError, match="prefix_cache_dir"):
            EngineConfig(prefix_cache_dir=folder, **settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="async"):
        LLM(None, device="cpu", prefix_cache_dir=folder, async_scheduling=True)


async def test_a_prompt_that_comes_while_the_cache_closes_is_read_from_nowhere(
    tiny_folder: str, tmp_path: Path
) -> None:
    async with running_engine(tiny_folder, num_kv_blocks=128, prefix_cache_dir=str(tmp_path)) as engine:
        disk = engine.part(DiskCache)
        assert disk is not None
        disk.close()
        await disk.fetch(PROMPT, PARAMS, tenant="")
