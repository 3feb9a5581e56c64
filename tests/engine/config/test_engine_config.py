"""Settings that cannot work are refused with a line that names their use."""

import dataclasses
from typing import Any

import pytest

from splitfuse.engine.config import EngineConfig, ResolvedConfig
from splitfuse.engine.errors import ConfigError


@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 0}, {"max_num_seqs": -1}, {"max_model_len": 1}, {"gpu_memory_utilization": 1.5},
        {"target_itl_ms": 0}, {"batching_policy": "lifo"}, {"preemption_mode": "swap"}, {"speculative_config": {}},
        {"model": " "},
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        EngineConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_size": True}, r"block_size must be an integer of at least 1, not True \(tokens in one block"),
        ({"max_queue_seconds": 0}, "max_queue_seconds must be a number above 0, not 0"),
        ({"gpu_memory_utilization": 1.5}, "must be a number above 0 and at most 1, not 1.5"),
        ({"swap_space": float("inf")}, "swap_space must be a number of at least 0, not inf"),
        ({"enforce_eager": "no"}, "enforce_eager must be true or false, not 'no'"),
        ({"device": None}, "device None is not one of auto, cpu, cuda"),
        ({"tenant_weights": {"a": 1}}, "tenant_weights need scheduling_policy fair"),
        ({"tenant_weights": {"a": 0}, "scheduling_policy": "fair"}, "weight of 'a' must be a number above 0, not 0"),
    ],
)
def test_a_refusal_says_what_is_allowed(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**settings)


def test_none_is_allowed_where_it_is_the_default() -> None:
    assert EngineConfig(num_threads=None, quantization=None) == EngineConfig()


def test_a_model_may_have_several_names() -> None:
    config = EngineConfig(served_model_name="mine, other,claude-*")
    assert (config.model_name, config.model_names) == ("mine", ("mine", "other", "claude-*"))
    asked = ("mine", "other", "claude-opus-4-5", "claude-", "min", "mine2", "claude", "*")
    assert [name for name in asked if config.serves(name)] == list(asked[:4])
    assert EngineConfig(served_model_name="mine,*").serves("anything")
    with pytest.raises(ConfigError, match="first name cannot end in"):
        EngineConfig(served_model_name="claude-*")


def sizes(config: ResolvedConfig) -> tuple[int, int]:
    return config.max_num_seqs, config.max_num_batched_tokens


@pytest.mark.parametrize(("device", "limits"), [("cpu", (64, 512)), ("cuda", (256, 2048))])
def test_a_step_is_as_large_as_its_device_takes(device: str, limits: tuple[int, int]) -> None:
    assert sizes(ResolvedConfig.of(EngineConfig(), device=device)) == limits
    assert sizes(ResolvedConfig.of(EngineConfig(max_num_seqs=7), device=device)) == (7, limits[1])
    assert sizes(ResolvedConfig.of(EngineConfig(max_num_batched_tokens=9), device=device)) == (limits[0], 9)
    config = ResolvedConfig.of(EngineConfig(), device=device)
    assert (config.device, config.async_scheduling, config.scheduling_policy) == (device, device == "cuda", "fcfs")


def test_a_fact_is_not_decided_again() -> None:
    config = ResolvedConfig.of(EngineConfig(), device="cuda", dtype="bfloat16", max_model_len=100)
    assert sizes(ResolvedConfig.of(config, device="cpu", dtype="float32")) == (256, 2048)
    assert (config.dtype, config.max_model_len, dataclasses.replace(config, seed=1).seed) == ("bfloat16", 100, 1)


def test_steps_beside_streams_are_short_unless_they_are_set() -> None:
    def decided(device: str = "cpu", **settings: object) -> tuple[object, object]:
        wishes = EngineConfig(**settings)  # type: ignore[arg-type]
        config = ResolvedConfig.of(wishes, device=device, for_streams=True)
        return config.target_itl_ms, config.long_prefill_token_threshold

    assert decided() == ("auto", 256)
    assert decided("cuda") == ("auto", None)
    assert decided(target_itl_ms=50.0) == (50.0, None)
    assert decided(target_itl_ms="off") == ("off", 256)
    assert decided(long_prefill_token_threshold=0) == (None, 0)
    assert decided(batching_policy="static") == (None, None)
    assert ResolvedConfig.of(EngineConfig(), device="cpu").long_prefill_token_threshold is None
