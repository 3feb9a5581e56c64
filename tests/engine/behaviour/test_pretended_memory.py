"""Engines on a GPU of pretended memory: models that fit, the cache's share, and the errors if they do not fit."""

import logging
from functools import partial
from pathlib import Path

import pytest
import torch
from pretended_memory import PretendedMemory
from safetensors.torch import save_file
from tiny_models import save_model, write_config

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.execution.models.registry import model_class, read_model_config
from splitfuse.engine.execution.runner.model_runner import ModelRunner
from splitfuse.engine.formats import weight_reader
from splitfuse.engine.formats.weight_reader import WeightReader
from splitfuse.engine.formats.weights import DummySource
from splitfuse.kernels import quantize

SIZES = {
    "hidden_size": 256,
    "head_dim": 64,
    "intermediate_size": 768,
    "num_hidden_layers": 12,
    "max_position_embeddings": 256,
}
SETTINGS = {"device": "cpu", "dtype": "bfloat16", "max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 128}
NUM_WEIGHT_BYTES = 12 * (4 * 256 * 256 + 3 * 768 * 256) * 2
PARAMS = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": list(range(start, start + 40))} for start in (3, 50, 130, 60, 9)]


class _Saving(DummySource):
    def __init__(self) -> None:
        super().__init__(dtype=torch.bfloat16, seed=0)
        self.taken: dict[str, torch.Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        self.taken[name] = super().take(name, shape)
        return self.taken[name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model of 20 MB, whose file has layer 10 before layer 2."""
    folder = tmp_path_factory.mktemp("layers")
    save_model("llama-mha", folder)
    write_config(folder, **SIZES)
    config, source = read_model_config(folder), _Saving()
    build = model_class(config.architecture)
    build(config, source, device=torch.device("cpu"), max_model_len=128, dtype=torch.bfloat16)
    save_file(source.taken, folder / "model.safetensors")
    return folder


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scale the sizes of reading ahead and of quantizing down to this model's size."""
    monkeypatch.setattr(weight_reader, "WeightReader", partial(WeightReader, max_bytes_ahead=2**20, chunk_bytes=2**16))
    monkeypatch.setattr(quantize, "_VALUES_AT_ONCE", 2**15)


def load(folder: Path, memory: PretendedMemory, monkeypatch: pytest.MonkeyPatch, **settings: object) -> LLM:
    memory.install(monkeypatch)
    with memory.counting():
        return LLM(str(folder), **{**SETTINGS, "async_scheduling": True, **settings})


@pytest.mark.usefixtures("small_steps")
def test_what_does_not_fit_in_16_bits_fits_in_8(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total = int(0.8 * NUM_WEIGHT_BYTES)
    with pytest.raises(ConfigError, match=r"^out of memory: the weights do not fit; try --quantization .*\(tried"):
        load(folder, PretendedMemory(total), monkeypatch)
    memory = PretendedMemory(total)
    llm = load(folder, memory, monkeypatch, quantization="int8", enforce_eager=True)
    with memory.counting():
        assert len(llm.generate(PROMPTS, PARAMS)) == len(PROMPTS)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("utilization", [0.6, 0.9])
def test_the_cache_leaves_room_for_the_largest_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch, utilization: float
) -> None:
    memory = PretendedMemory(3 * NUM_WEIGHT_BYTES)
    settings = {"max_num_seqs": 64, "max_num_batched_tokens": 512, "enforce_eager": True, "block_size": 1}
    settings |= {"gpu_memory_utilization": utilization, "max_model_len": 256}
    llm = load(folder, memory, monkeypatch, **settings)
    limit = utilization * memory.total
    assert 0.85 * limit < memory.used < limit
    memory.most_used = 0
    with memory.counting():
        llm.generate([{"prompt_token_ids": [5] * 100}] * 80, PARAMS)
    assert memory.most_used <= limit


@pytest.mark.usefixtures("small_steps")
def test_a_step_that_does_not_fit_names_its_settings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = PretendedMemory(2 * NUM_WEIGHT_BYTES)
    with pytest.raises(ConfigError, match=r"a step of 65536 tokens and 4 sequences .* lower --max-num-batched-tokens"):
        load(folder, memory, monkeypatch, max_num_batched_tokens=65536)


@pytest.mark.usefixtures("small_steps")
def test_no_room_for_a_block_names_its_settings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = PretendedMemory(2 * NUM_WEIGHT_BYTES)
    with pytest.raises(ConfigError, match=r"one block of 16 tokens .* 0 are there .* raise .*--gpu-memory-utilization"):
        load(folder, memory, monkeypatch, gpu_memory_utilization=0.5)


def test_steps_without_memory_say_what_to_lower(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    llm, run = LLM(str(folder), **SETTINGS, num_kv_blocks=64), ModelRunner.run

    def run_or_not(self: ModelRunner, batch: object) -> object:
        if len(batch.rows) > 1:  # type: ignore[attr-defined]
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return run(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(ModelRunner, "run", run_or_not)
    with caplog.at_level(logging.WARNING):
        assert len(llm.generate(PROMPTS[:2], PARAMS)) == 2
    assert "failed (out of memory: lower --gpu-memory-utilization, --max-num-batched-tokens or" in caplog.text
