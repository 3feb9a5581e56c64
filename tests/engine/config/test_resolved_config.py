"""ResolvedConfig: every limit and policy is decided, by the device if the user said nothing."""

import dataclasses

import pytest

from splitfuse.engine.config import EngineConfig, ResolvedConfig


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
