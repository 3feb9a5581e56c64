"""A batch's walk through the runner's files: a reader who follows it comes back to few files that he has left.

A stay begins where a function of another file is called; coming back from a call begins none. Comprehensions and
lambdas belong to the function that wrote them. Three kinds of files are no stays: plain data (`engine/core`, sample
indices), the queue through which work passes (`engine/device.py`), and what an extra does behind its port: its folder
counts as one file. A loop over rows counts once. Kernels lie outside `engine/`.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import splitfuse.engine
from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.core.batch import Batch
from splitfuse.engine.execution.runner.cuda_graphs import graph_sizes

ENGINE = Path(splitfuse.engine.__file__).parent
NO_STAYS = ("core/", "device.py", "execution/sampling/sampled.py")
MOST_RETURNS = 5


class Repeater:
    """In CUDA's place. A replay calls no function of the engine, so its work is not watched."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        return lambda: unwatched(work)


def unwatched(work: Callable[[], None]) -> None:
    watcher = sys.getprofile()
    sys.setprofile(None)
    work()
    sys.setprofile(watcher)


def walk(run: Callable[[], Any]) -> list[str]:
    """Return the files in which functions are called, in order, neighbours and loops once."""
    stays: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event != "call" or frame.f_code.co_name.startswith("<") or not path.is_relative_to(ENGINE):
            return
        name = str(path.relative_to(ENGINE))
        if not name.startswith(NO_STAYS):
            stays.append(str(Path(name).parent) if name.startswith(("extras/", "language/")) else name)

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return without_loops(stays)


def without_loops(stays: list[str]) -> list[str]:
    """Return the list without a piece that follows an equal piece."""
    for size in range(1, len(stays) // 2 + 1):
        at = 0
        while at + 2 * size <= len(stays):
            if stays[at : at + size] == stays[at + size : at + 2 * size]:
                del stays[at : at + size]
            else:
                at += 1
    return stays


def walk_of_a_mixed_batch(llm: LLM) -> list[str]:
    """Walk of `ModelRunner.run` for a decode under a grammar, one that is sampled, and a part of a prompt."""
    runner, walks = llm.engine.pipeline._runner._runner, []
    run = runner.run

    def watched(batch: Batch) -> Any:
        outputs: list[Any] = []
        stays = walk(lambda: outputs.extend(run(batch)))
        if [row.num_tokens for row in batch.rows] == [1, 1, 22]:
            walks.append(stays)
        return outputs

    runner.run = watched  # type: ignore[method-assign]
    try:
        limited = SamplingParams(max_tokens=9, structured_outputs={"regex": "[a-f ]{9,30}"}, presence_penalty=0.1)
        others = [SamplingParams(max_tokens=9, temperature=temperature, ignore_eos=True) for temperature in (0.5, 0.0)]
        llm.generate(["Once", "A", "There was a dog " * 20], [limited, *others])
    finally:
        del runner.run
    return walks[-1]


@pytest.fixture
def llm() -> LLM:
    llm = LLM(dtype="float32", device="cpu", max_num_batched_tokens=24, enable_prefix_caching=False)
    if llm.engine.pipeline._runner._runner.loaded.op_by_op is not None:  # type: ignore[attr-defined]
        pytest.skip("needs a C++ compiler: op by op, the layers walk on their own")
    return llm


def test_a_batch_comes_back_to_few_files(llm: LLM) -> None:
    stays = walk_of_a_mixed_batch(llm)
    print(f"{len(stays)} stays in {len(set(stays))} files:", *stays, sep="\n  ")
    assert "language/structured_output" in stays
    assert len(stays) - len(set(stays)) <= MOST_RETURNS


def test_a_batch_that_a_graph_serves_comes_back_to_few_files(llm: LLM) -> None:
    runner = llm.engine.pipeline._runner._runner
    launcher = runner.new_launcher(max_num_tokens=24, max_num_seqs=8, max_model_len=512)  # type: ignore[attr-defined]
    hidden_size = runner.loaded.model_config.hidden_size  # type: ignore[attr-defined]
    launcher.use_graphs(Repeater(), sizes=graph_sizes(8), hidden_size=hidden_size, dtype=torch.float32)
    launcher.capture_graphs()
    stays = walk_of_a_mixed_batch(llm)
    print(f"{len(stays)} stays in {len(set(stays))} files:", *stays, sep="\n  ")
    assert "execution/runner/cuda_graphs.py" in stays
    assert len(stays) - len(set(stays)) <= MOST_RETURNS


def test_loops_count_once() -> None:
    assert without_loops(list("abbbcbcbcdbc")) == list("abcdbc")
