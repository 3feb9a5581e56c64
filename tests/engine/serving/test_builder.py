"""Before an engine takes requests it has generated some tokens, and nothing of that is left."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import collect, running_engine
from safetensors.torch import load_file, save_file
from tiny_models import save_model

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.execution.runner.async_runner import AsyncRunner
from splitfuse.engine.execution.runner.model_runner import ModelRunner
from splitfuse.engine.execution.sampling.rng import derive_seed

OVERLAPPED = pytest.mark.parametrize("overlapped", [False, True])


@OVERLAPPED
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, overlapped: bool) -> None:
    save_model("llama-gqa-tied", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][3] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"cannot generate: .*finite.*error id.*fetch its files again"):
        LLM(str(tmp_path), device="cpu", dtype="float32", async_scheduling=overlapped)


@OVERLAPPED
def test_an_engine_whose_steps_fail_does_not_start(
    tiny_folder: str, overlapped: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("undefined symbol")

    monkeypatch.setattr(ModelRunner, "run", broken)
    monkeypatch.setattr(AsyncRunner, "launch", broken)
    with pytest.raises(ConfigError, match="cannot generate"):
        LLM(tiny_folder, device="cpu", dtype="float32", async_scheduling=overlapped)
    assert "undefined symbol" in caplog.text


@OVERLAPPED
def test_the_steps_are_those_of_requests(tiny_folder: str, overlapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[Any] = []
    for kind, name in ((ModelRunner, "run"), (AsyncRunner, "launch")):
        compute = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda self, batch, *, _do=compute: batches.append(batch) or _do(self, batch))
    LLM(tiny_folder, device="cpu", dtype="float32", async_scheduling=overlapped)
    assert [[row.num_tokens for row in batch.rows] for batch in batches] == [[4], [1]]


@OVERLAPPED
async def test_nothing_is_left_of_it(tiny_folder: str, overlapped: bool, tmp_path: Path) -> None:
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    async with running_engine(tiny_folder, record=str(tmp_path / "steps"), async_scheduling=overlapped) as engine:
        stats = engine.stats()
        assert stats["steps"] == []
        assert stats["num_free_blocks"] == stats["num_blocks"]
        assert stats["prefix_cache_queries"] == stats["cost_model"]["num_steps"] == 0
        assert "self-test" not in (tmp_path / "steps").read_text()
        drawn = await collect(engine, [0, 1, 2, 3], params)
        assert engine.stats()["steps"][0]["step"] == 0
        assert engine.stats()["prefix_cache_hits"] == 0
        seeded = await collect(engine, [0, 1, 2, 3], replace(params, seed=derive_seed(0, 1)))
        assert drawn[0].token_ids == seeded[0].token_ids, "the first seed is for the first request"


@pytest.mark.parametrize(
    "settings",
    [
        {"max_model_len": 2},
        {"num_kv_blocks": 1, "block_size": 1},
        {"num_kv_blocks": 1, "block_size": 3},
        {"max_num_batched_tokens": 1, "max_num_seqs": 1},
        {"batching_policy": "static", "scheduling_policy": "fair"},
        {"target_itl_ms": 1e-3},
    ],
    ids=str,
)
def test_it_fits_engines_that_are_small(tiny_folder: str, settings: dict[str, Any]) -> None:
    assert LLM(tiny_folder, device="cpu", dtype="float32", **settings).engine.core.num_unfinished == 0
