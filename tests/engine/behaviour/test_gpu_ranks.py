"""Tensor parallelism as on GPUs: torch's groups (gloo for NCCL), steps that run ahead, exchanges within graphs.

`tests/gpu/calls/ranks.py` is for a machine with two GPUs.
"""

import os
import random
import signal
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gloo_ranks import emulate_graphs, use_gloo_ranks
from random_schedule import Arrival, run_schedule
from rank_answers import PARAMS, PROMPTS, answer
from repeating_capturer import RepeatingCapturer
from thread_ranks import use_thread_ranks
from tiny_models import VOCAB_SIZE, save_model

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.errors import RankLostError
from splitfuse.engine.execution.runner import launching
from splitfuse.engine.extras.parallel import parallel_model, rank_process
from splitfuse.engine.serving import loading
from splitfuse.kernels.cpu import build
from splitfuse.kernels.cpu.rank_group import RankGroup

pytestmark = pytest.mark.skipif(build.library() is None, reason="needs a C++ compiler for the native CPU library")
NUM_LAYERS = 2  # of llama-mha


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model("llama-mha", tmp_path)
    return tmp_path


@pytest.mark.parametrize("is_ahead", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_two_processes_answer_as_one(is_ahead: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = answer(folder)[0]
    capturers = use_gloo_ranks(monkeypatch)
    assert answer(folder, 2, async_scheduling=is_ahead, max_num_seqs=8)[0] == whole
    assert sum(capturer.num_replayed for capturer in capturers) >= 4 * is_ahead


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_exact_sums_have_the_bits_of_a_cpus(dtype: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the ranks, and of their slices."""
    use_thread_ranks(monkeypatch)
    options = {"exact": True, "dtype": dtype}
    expected, of_slices = answer(folder, 2, **options), answer(folder, 1, 4, **options)
    monkeypatch.undo()
    use_gloo_ranks(monkeypatch)
    assert answer(folder, 2, **options) == expected
    assert answer(folder, 2, 4, dtype=dtype) == of_slices
    assert answer(folder, 1, 4, dtype=dtype) == of_slices, "one rank has no other to meet"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("sent", "words"), [(signal.SIGKILL, "was ended by SIGKILL"), (signal.SIGSTOP, "is stopped")])
def test_a_lost_rank_is_named(sent: int, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_gloo_ranks(monkeypatch)
    with LLM(str(folder), device="cpu", dtype="float32", tensor_parallel_size=2, async_scheduling=True) as llm:
        llm.generate([PROMPTS[0]], PARAMS[0])
        (process,) = llm.engine.pipeline._runner._runner.ranks._state._processes  # type: ignore[attr-defined]
        os.kill(process.pid, sent)
        with pytest.raises(RankLostError, match=f"rank 1 {words}"):
            llm.generate([PROMPTS[0]], PARAMS[0])


class RecordingCapturer(RepeatingCapturer):
    """Capturer that knows the exchanges of each capture, and compares those of its replays."""

    def __init__(self, exchanges: dict[int, list[Any]]) -> None:
        self._exchanges = exchanges
        self.captured: list[list[Any]] = []

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        log = self._exchanges[threading.get_ident()]
        start = len(log)
        repeat = super().capture(work)
        exchanges = log[start:]
        self.captured.append(exchanges)

        def replay() -> None:
            start = len(log)
            repeat()
            assert log[start:] == exchanges

        return replay


def test_graphs_hold_the_same_exchanges_on_every_rank(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exchanges: dict[int, list[Any]] = defaultdict(list)
    for name in ("sum", "gather", "broadcast"):
        exchange = getattr(RankGroup, name)

        def recorded(self: Any, x: Any, *args: Any, exchange: Any = exchange, name: str = name, **more: Any) -> Any:
            exchanges[threading.get_ident()].append((name, tuple(x.shape)))
            return exchange(self, x, *args, **more)

        monkeypatch.setattr(RankGroup, name, recorded)
    capturers: list[RecordingCapturer] = []

    def capturer(device: object) -> RecordingCapturer:
        capturers.append(RecordingCapturer(exchanges))
        return capturers[-1]

    use_thread_ranks(monkeypatch)
    monkeypatch.setattr(launching, "_capturer", capturer)
    monkeypatch.setattr("splitfuse.kernels.ops.record", lambda *args, **more: "op by op")  # a plan exchanges by itself
    options: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_num_seqs": 4, "async_scheduling": True}
    with LLM(str(folder), tensor_parallel_size=2, **options) as llm:
        outputs = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS)]
    of_rank_0, of_rank_1 = (capturer.captured for capturer in capturers)
    names = [[[name for name, _ in graph if name != "gather"] for graph in graphs] for graphs in (of_rank_0, of_rank_1)]
    assert names[0] == names[1], "RankGroup broadcasts by a gather, of other columns on each rank"
    assert len(names[0]) > 4
    assert all(graph == ["broadcast", "sum", *["sum", "sum"] * NUM_LAYERS] for graph in names[0])
    assert [capturer.num_replayed for capturer in capturers] == [capturers[0].num_replayed] * 2
    assert capturers[0].num_replayed > 8
    monkeypatch.undo()
    assert outputs == answer(folder)[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(3))
def test_steps_that_run_ahead_change_no_schedule(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With preemptions, swaps, aborts and prompt logprobs, which are read when the next step is on its way."""
    use_thread_ranks(monkeypatch)
    emulate_graphs(monkeypatch)
    monkeypatch.setattr("splitfuse.engine.execution.runner.cuda_graphs.STEPS_BETWEEN_CAPTURES", 2)
    found: list[list[Arrival]] = []
    for size in (1, 2):
        rng = random.Random(seed)
        llm = LLM(
            str(folder), device="cpu", dtype="float32", tensor_parallel_size=size, tensor_parallel_slices=2,
            async_scheduling=size > 1, num_kv_blocks=40, block_size=4, swap_space=1e-2, max_num_seqs=6,
            max_num_batched_tokens=32, max_model_len=150,
        )  # fmt: skip
        found.append([_arrival(rng, index) for index in range(12)])
        run_schedule(llm, found[-1])
        llm.close()
    for one, two in zip(*found, strict=True):
        if one.abort_after is None:
            assert one.output.token_ids == two.output.token_ids
            assert one.output.logprobs == two.output.logprobs
            assert list(one.prompt_logprobs or ()) == list(two.prompt_logprobs or ())


def _arrival(rng: random.Random, index: int) -> Arrival:
    prompt = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 100))]
    params = SamplingParams(
        temperature=(0, 0.8)[index % 2], seed=index, max_tokens=12, ignore_eos=True, logprobs=1,
        prompt_logprobs=1 if index % 4 == 0 else None,
    )  # fmt: skip
    return Arrival(prompt, params, at_step=rng.randint(0, 30), abort_after=3 if index % 6 == 5 else None)


class FakeMemory:
    def __init__(self, total: int) -> None:
        self._total = total

    def free_and_total(self) -> tuple[int, int]:
        return self._total, self._total

    def peak(self, work: Callable[[], object]) -> int:
        work()
        return 1000


def test_the_gpu_with_the_least_memory_decides(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_thread_ranks(monkeypatch)
    monkeypatch.setattr(
        parallel_model, "cached_config", lambda model, parallel, _: parallel_model.own_config(model, parallel)
    )
    blocks = []
    for others in (2**20, 2**21):
        monkeypatch.setattr(loading, "memory_of", lambda device: FakeMemory(2**21))
        monkeypatch.setattr(rank_process, "memory_of", lambda device, others=others: FakeMemory(others))
        options: dict[str, Any] = {"max_num_seqs": 200, "enforce_eager": True}
        with LLM(str(folder), device="cpu", dtype="float32", tensor_parallel_size=2, **options) as llm:
            blocks.append(llm.engine.core.blocks.device.num_blocks)
            assert llm.generate([PROMPTS[2]], PARAMS[0])[0].outputs[0].token_ids
    assert blocks[0] == pytest.approx(blocks[1] / 2, rel=0.01)
