"""Advice: an extra that raises in any hook, at every step, changes no token and ends no engine."""

import inspect
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from engines import Collector, running_engine

from splitfuse.engine import AsyncEngine, SamplingParams
from splitfuse.engine.core import ports
from splitfuse.engine.core.cost_model import CostModel
from splitfuse.engine.extras.inspection.step_watcher import StepWatcher
from splitfuse.engine.serving.delta_dispatch import EngineObserver
from splitfuse.engine.serving.guarded_hook import GuardedHook


def is_advice(port: Any) -> bool:
    """True for a base class that does nothing; protocols and values are what no step goes without."""
    is_here = inspect.isclass(port) and port.__module__ == ports.__name__
    return is_here and not getattr(port, "_is_protocol", False) and not issubclass(port, tuple)


ADVICE = [port for port in vars(ports).values() if is_advice(port)] + [CostModel, EngineObserver]
HOOKS = [
    (port.__name__, name)
    for port in ADVICE
    for name, method in inspect.getmembers(port, inspect.isfunction)
    if not name.startswith("_")
]
PROMPTS = ([5, 6, 7, 5, 6, 7, 5, 6], list(range(40)), [9] * 30, [1, 2, 3])


def test_every_port_that_is_advice_is_found() -> None:
    names = {port.__name__ for port in ADVICE}
    assert names == {"CostModel", "EngineObserver", "Pacer", "RequestObserver", "SchedulerListener", "Speculator"}
    assert len(HOOKS) > 25


@pytest.fixture
async def engine(tiny_folder: str, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    settings: dict[str, Any] = {
        "num_kv_blocks": 10,  # too few for all, so that requests are preempted
        "max_model_len": 160,
        "max_num_batched_tokens": 24,
        "enable_prefix_caching": False,
        "target_itl_ms": "auto",
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False},
        "record": str(tmp_path / "recording.jsonl"),
    }
    async with running_engine(tiny_folder, **settings) as engine:
        engine.observe(EngineObserver())
        engine.view.listen(StepWatcher(engine.view.scheduler, max_num_batched_tokens=24))
        yield engine


async def tokens_of(engine: AsyncEngine) -> list[list[int]]:
    """Send prompts with goals, ask for every figure meanwhile, and abort one. Return the tokens of the others."""
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, ttft_ms=60_000, itl_ms=50)
    sinks = [Collector() for _ in PROMPTS]
    submitted = [
        await engine.submit({"prompt_token_ids": prompt}, params, sink)
        for prompt, sink in zip(PROMPTS, sinks, strict=True)
    ]
    aborted = Collector()
    victim = await engine.submit({"prompt_token_ids": [3, 4]}, params, aborted)
    await aborted.until(2)
    engine.abort(victim.request_id)
    for sink, request in zip(sinks, submitted, strict=True):
        engine.view.metrics(request.request_id)
        engine.stats()
        await sink.ended.wait()
    return [[token for delta in sink.deltas for token in delta.token_ids] for sink in sinks]


def hooks_of(engine: AsyncEngine) -> dict[str, list[GuardedHook]]:
    guards: dict[str, list[GuardedHook]] = {}
    for hook in (*engine.view.hooks, *engine._dispatch.observers):
        assert isinstance(hook, GuardedHook), hook
        guards.setdefault(type(hook._default).__name__, []).append(hook)
    return guards


class Broken:
    """Hook of which some methods raise; all else is the real one's."""

    def __init__(self, hook: Any, broken: set[str]) -> None:
        self.hook, self.broken = hook, broken

    def __getattr__(self, name: str) -> Any:
        return self._raise if name in self.broken else getattr(self.hook, name)

    def _raise(self, *_: Any, **__: Any) -> Any:
        raise ArithmeticError("a bug of the extra's")


async def test_each_hook_may_raise_at_every_step(engine: AsyncEngine, caplog: pytest.LogCaptureFixture) -> None:
    expected = await tokens_of(engine)
    assert engine.stats()["num_preemptions"] > 0
    guards = hooks_of(engine)
    real = {guard: guard._hook for group in guards.values() for guard in group}
    for port, name in HOOKS:
        before = engine.stats()["advice_failures"].get(f"{port}.{name}", 0)
        for guard in guards[port]:
            guard._hook = Broken(real[guard], {name})
        with caplog.at_level(logging.ERROR):
            assert await tokens_of(engine) == expected, (port, name)
        failures = engine.stats()["advice_failures"].get(f"{port}.{name}", 0) - before
        assert failures > 0, f"{port}.{name} was not called"
        messages = [record.getMessage() for record in caplog.records if f"{port}.{name} failed" in record.getMessage()]
        assert len(messages) <= len(guards[port]), "logged once per hook"
        assert messages
        for guard in guards[port]:
            guard._hook = real[guard]
    assert engine.is_healthy
    assert not engine.has_died


async def test_all_hooks_may_raise_at_once(engine: AsyncEngine) -> None:
    expected = await tokens_of(engine)
    for group in hooks_of(engine).values():
        for guard in group:
            guard._hook = Broken(guard._hook, {name for _, name in HOOKS})
    for _ in range(3):
        assert await tokens_of(engine) == expected
    assert engine.is_healthy
    engine.core.scheduler.check()
