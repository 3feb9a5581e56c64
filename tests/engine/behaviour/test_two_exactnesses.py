"""Two engines of one process of which one is exact: each step's kernels follow the engine that takes the step."""

from threading import Thread
from typing import Any

import pytest
import torch

from splitfuse.engine import LLM
from splitfuse.kernels import ops
from splitfuse.kernels.cuda import device_info

GPU = torch.device("cuda")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool]]:
    """Choice of the thread's kernels at each forward pass, beside the engine's own. The CPU stands for a GPU."""
    found: list[tuple[bool, bool]] = []
    be_exact, init = ops.be_exact, LLM.__init__
    monkeypatch.setattr(device_info.EXACT, "is_on", False)
    monkeypatch.setattr(ops, "be_exact", lambda device, is_exact: be_exact(GPU, is_exact))

    def watched(llm: LLM, model: str, **settings: Any) -> None:
        init(llm, model, **settings)
        forward_pass = llm.engine.runner.stages.forward_pass
        run = forward_pass.run

        def noted(*args: Any, **options: Any) -> Any:
            found.append((device_info.EXACT.is_on, bool(settings["exact"])))
            return run(*args, **options)

        monkeypatch.setattr(forward_pass, "run", noted)

    monkeypatch.setattr(LLM, "__init__", watched)
    return found


def test_steps_of_two_engines_take_turns(tiny_folder: str, seen: list[tuple[bool, bool]]) -> None:
    llms = [LLM(tiny_folder, dtype="float32", exact=is_exact) for is_exact in (True, False)]
    streams = [llm.generate_stream("hello", max_tokens=4, ignore_eos=True) for llm in llms]
    assert len(list(zip(*streams, strict=True))) == 4
    assert {own for _, own in seen} == {True, False}
    assert all(chosen == own for chosen, own in seen)


def test_a_choice_is_a_threads_own(seen: list[tuple[bool, bool]]) -> None:
    other = Thread(target=ops.be_exact, args=(GPU, True))
    other.start()
    other.join()
    assert not device_info.EXACT.is_on
