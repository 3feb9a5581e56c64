"""The plan of a model's memory: the blocks that loading it gives, and the limits that it is told."""

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import save_model

from splitfuse.engine import LLM
from splitfuse.engine.config import DEMO_FOLDER, EngineConfig
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.execution.models.resolved_model import resolve
from splitfuse.engine.serving import loading
from splitfuse.engine.serving.loading import load_runner
from splitfuse.engine.serving.memory_plan import plan_memory

GIB = 2**30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model("llama-gqa-tied", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_cache_memory_bytes": 2**20},
        {"kv_cache_memory_bytes": 2**20, "kv_cache_dtype": "int8"},
        {"num_kv_blocks": 77},
        {"max_model_len": 40},
    ],
)
def test_it_gives_the_blocks_that_loading_gives(fields, folder):
    config = EngineConfig(model=str(folder), device="cpu", **fields)
    loaded = load_runner(resolve(config, folder)).loaded
    found = plan_memory(config, folder)
    if "kv_cache_memory_bytes" in fields:
        assert loaded.memory == replace(found, weight_bytes=0, model=loaded.memory.model), "one function made both"
    assert found.num_blocks == loaded.cache.num_blocks
    assert (found.config.block_size, found.config.max_model_len) == (loaded.cache.block_size, loaded.max_model_len)
    assert (found.config.device, f"torch.{found.config.dtype}") == ("cpu", str(loaded.dtype))


def test_on_a_cpu_the_cache_gets_a_share_of_what_the_weights_leave(monkeypatch):
    config = EngineConfig(device="cpu", max_num_seqs=4096)
    memory = GIB
    found = plan_memory(config, DEMO_FOLDER, memory=memory)
    used = found.weight_bytes + 350 * 2**20
    monkeypatch.setattr(loading, "available_memory", lambda: memory - used)
    assert found.num_blocks == load_runner(resolve(config, DEMO_FOLDER)).loaded.cache.num_blocks


def test_on_a_gpu_weights_and_a_step_are_taken_off_what_it_has():
    config = EngineConfig(device="cuda", dtype="bfloat16", max_num_seqs=4096)
    found = plan_memory(config, DEMO_FOLDER, memory=2 * GIB)
    left = int(2 * GIB * 0.9) - found.weight_bytes - found.step_bytes - 500 * 2**20
    assert found.config.device == "cuda"
    assert found.step_bytes > 0
    assert found.num_blocks == left // (found.token_bytes * found.config.block_size)
    assert found.fits


def test_an_int8_cache_holds_nearly_twice_the_tokens():
    fields = {"device": "cpu", "dtype": "bfloat16", "kv_cache_memory_bytes": 2**22, "max_num_seqs": 4096}
    plain, rounded = (
        plan_memory(EngineConfig(kv_cache_dtype=name, **fields), DEMO_FOLDER) for name in ("auto", "int8")
    )
    head_dim = plain.model.head_dim
    assert rounded.token_bytes * 2 * head_dim == plain.token_bytes * (head_dim + 4)
    assert 1.85 < rounded.num_tokens / plain.num_tokens < 2


def test_what_does_not_fit_is_said():
    found = plan_memory(EngineConfig(device="cpu"), DEMO_FOLDER, memory=100 * 2**20)
    assert not found.fits
    assert (found.num_tokens, found.num_requests) == (0, 0)


def test_two_ranks_share_the_keys_and_values():
    config = EngineConfig(device="cuda")
    one, two = (plan_memory(config, DEMO_FOLDER, memory=2 * GIB, num_ranks=ranks) for ranks in (1, 2))
    assert two.token_bytes == one.token_bytes // 2
    assert two.weight_bytes < one.weight_bytes


def test_what_serving_refuses_is_refused():
    with pytest.raises(ConfigError, match="max-model-len"):
        plan_memory(EngineConfig(device="cpu", max_model_len=10**7), DEMO_FOLDER)


@pytest.fixture
def hybrid_folder(tmp_path: Path) -> Path:
    save_model("lfm2", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_cache_memory_bytes": 2**21},
        {"kv_cache_memory_bytes": 2**21, "speculative_config": {"method": "ngram", "num_speculative_tokens": 5}},
        {"kv_cache_memory_bytes": 2**23, "max_num_seqs": 200, "async_scheduling": True},
        {"num_kv_blocks": 77},
        {"max_model_len": 40},
    ],
)
def test_states_have_the_slots_of_the_plan_within_the_memory(fields, hybrid_folder):
    config = EngineConfig(model=str(hybrid_folder), device="cpu", **fields)
    resolved = resolve(config, hybrid_folder)
    runner = load_runner(resolved)
    found = plan_memory(config, hybrid_folder)
    assert found.states == runner.loaded.states
    assert found.num_blocks == runner.loaded.cache.num_blocks
    num_bytes = found.num_tokens * found.token_bytes + found.states.num_slots * found.states.slot_bytes
    assert num_bytes == sum(tensor.numel() * tensor.element_size() for tensor in runner.cache.memory())
    assert num_bytes <= fields.get("kv_cache_memory_bytes", num_bytes)
    assert found.states.num_live == 2 * resolved.config.max_num_seqs * (2 if config.async_scheduling else 1)
    assert found.states.num_checkpoints >= 4


def test_states_and_blocks_share_the_swap_space(hybrid_folder):
    config = EngineConfig(model=str(hybrid_folder), device="cpu", num_kv_blocks=20, swap_space=2**-9)
    resolved = resolve(config, hybrid_folder)
    runner = load_runner(resolved)
    spec, states = runner.loaded.cache, runner.loaded.states
    assert plan_memory(config, hybrid_folder).states == states
    assert states.num_host == resolved.config.max_num_seqs
    token_bytes = runner.loaded.memory.token_bytes
    assert states.slot_blocks == states.slot_bytes / (token_bytes * spec.block_size)
    num_bytes = spec.num_host_blocks * spec.block_size * token_bytes + states.num_host * states.slot_bytes
    assert 2**21 - spec.block_size * token_bytes < num_bytes <= 2**21
    pieces = runner.cache._host_blocks.pieces + runner.cache._host_states.pieces
    assert num_bytes == sum(piece.numel() * piece.element_size() for piece in pieces)


def test_a_swap_space_without_room_for_a_state_is_refused(hybrid_folder):
    config = EngineConfig(model=str(hybrid_folder), device="cpu", swap_space=1e-7)
    with pytest.raises(ConfigError, match=r"--swap-space: a recurrent state takes \d+ bytes.*GiB or more, or to 0"):
        plan_memory(config, hybrid_folder)


def test_states_without_memory_for_blocks_are_refused(hybrid_folder):
    config = EngineConfig(model=str(hybrid_folder), device="cpu", kv_cache_memory_bytes=2**17)
    with pytest.raises(ConfigError, match=r"128 recurrent states for 64 sequences.*lower --max-num-seqs"):
        load_runner(resolve(config, hybrid_folder))


def test_ranks_do_not_share_recurrent_layers(hybrid_folder):
    with pytest.raises(ConfigError, match="not built for Lfm2ForCausalLM, whose layers keep"):
        resolve(EngineConfig(model=str(hybrid_folder), device="cpu", tensor_parallel_size=2), hybrid_folder)
    with pytest.raises(ConfigError, match="not built for Lfm2ForCausalLM"):
        plan_memory(EngineConfig(device="cpu"), hybrid_folder, num_ranks=2)


def test_a_model_with_recurrent_layers_does_not_draft(hybrid_folder):
    with pytest.raises(ConfigError, match="Lfm2ForCausalLM as a draft model is not built"):
        LLM("demo", device="cpu", speculative_config={"model": str(hybrid_folder)})
