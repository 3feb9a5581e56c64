"""Advice: an extra that raises in any hook, at every step, changes no token and ends no engine.

The hooks are found by walking the engine's sources: what a part wraps for the steps is guarded, or no step goes
without it.
"""

import ast
import importlib
import inspect
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from engines import Collector, running_engine

from splitfuse.engine import AsyncEngine, SamplingParams
from splitfuse.engine.core import ports
from splitfuse.engine.extras.inspection.step_watcher import StepWatcher
from splitfuse.engine.serving.delta_dispatch import EngineObserver
from splitfuse.engine.serving.engine_part import EnginePart
from splitfuse.engine.serving.guarded_hook import GuardedHook


def is_advice(port: Any) -> bool:
    """True for a base class that does nothing; protocols and values are what no step goes without."""
    is_here = inspect.isclass(port) and port.__module__ == ports.__name__
    return is_here and not getattr(port, "_is_protocol", False) and not issubclass(port, tuple)


ROOT = Path(__file__).parents[3]
GUARDED = "guarded: its failures cost the steps their advice"
# What an exception costs, for each hook of a part.
ROWS = {
    **dict.fromkeys(("observer", "listener", "pacer", "speculator"), GUARDED),
    **dict.fromkeys(("config", "companions", "runner", "test_params"), "the start: no step goes without them"),
    **dict.fromkeys(("params_for", "params_now", "constrained", "fetch"), "the request that comes"),
    **dict.fromkeys(("variants", "variant_digest", "stats", "weights_changed"), "the request that asks"),
    "close": "nothing: the engine has ended",
}


def calls() -> Iterator[tuple[Path, ast.Call]]:
    """Yield all calls in the engine."""
    for path in sorted((ROOT / "engine").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield path, node


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def guards() -> dict[str, Any]:
    """Return the base classes that answer where a hook raises, by their names."""
    found: dict[str, Any] = {}
    for path, call in calls():
        if name_of(call) == "guarded":
            module = ".".join(("splitfuse", *path.relative_to(ROOT).with_suffix("").parts))
            default = call.args[1]
            assert isinstance(default, ast.Call), (module, ast.unparse(call))
            name = name_of(default)
            found[name] = getattr(importlib.import_module(module), name)
    return found


ADVICE = list(guards().values())
HOOKS = [
    (port.__name__, name)
    for port in ADVICE
    for name, method in inspect.getmembers(port, inspect.isfunction)
    if not name.startswith("_")
]
PROMPTS = ([5, 6, 7, 5, 6, 7, 5, 6], list(range(40)), [9] * 30, [1, 2, 3])


def test_every_port_that_is_advice_is_guarded() -> None:
    assert {port for port in vars(ports).values() if is_advice(port)} - {*ADVICE} == set()
    assert len(HOOKS) > 25


def test_every_hook_of_a_part_has_a_row() -> None:
    hooks = {name for name in vars(EnginePart) if not name.startswith("_") and name != "generates"}
    assert hooks == ROWS.keys()


def test_what_a_part_puts_around_steps_is_guarded() -> None:
    found = list(calls())
    inside = {id(part) for _, call in found if name_of(call) == "guarded" for part in ast.walk(call)}
    wrapped = [call for _, call in found if name_of(call) == "wrapped" and isinstance(call.args[0], ast.Constant)]
    assert {call.args[0].value for call in wrapped if id(call) in inside} == {
        name for name, row in ROWS.items() if row == GUARDED
    }


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
