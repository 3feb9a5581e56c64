"""Graphs of decodes and of mixed batches, with a capturer that does the work again instead of CUDA."""

import asyncio
import json
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from engines import collect, running_engine
from overlapped_llm import compare, launcher_of
from tiny_adapters import random_adapter, save_adapter
from tiny_models import CONFIGS, save_model

from splitfuse.engine import LLM, LoRARequest, SamplingParams
from splitfuse.engine.core.batch import Batch
from splitfuse.engine.execution.models.forward_inputs import Inputs
from splitfuse.engine.execution.runner import async_runner, launching
from splitfuse.engine.execution.runner import cuda_graphs as graphs_module
from splitfuse.engine.execution.runner.cuda_graphs import (
    STEPS_BETWEEN_CAPTURES,
    StepGraphs,
    graph_sizes,
    mixed_graph_sizes,
    num_tokens_of_a_launch,
    pad,
    padding,
)
from splitfuse.engine.execution.runner.transfer import layout_of
from splitfuse.kernels import ops

SIZES = (8, 4, 2, 1)


class FakeCapturer:
    """Does the work when it captures, as the first pass before a capture does, and when it replays."""

    def __init__(self, when_done: Callable[[int], object] = lambda count: None) -> None:
        self.num_captured = 0
        self.num_replayed = 0
        self._when_done = when_done

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        self.num_captured += 1
        self._when_done(self.num_captured)

        def replay() -> None:
            self.num_replayed += 1
            work()

        return replay


class FailingCapturer:
    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing")


def make_graphs(capturer: Any = None, forward: Any = None, sizes: tuple[int, ...] = SIZES) -> StepGraphs:
    return StepGraphs(
        forward or (lambda sources, inputs: inputs.token_ids[:, None].float()),
        capturer or FakeCapturer(),
        sizes=sizes,
        buffer=torch.zeros(4096, dtype=torch.uint8),
        hidden=torch.zeros(sizes[0], 1),
        tables=torch.zeros((sizes[0], 6), dtype=torch.int32),
        max_model_len=24,
    )


def test_tokens_are_those_of_plain_steps(tiny_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs_module, "STEPS_BETWEEN_CAPTURES", 2)
    capturer = FakeCapturer()
    num_launched = sum(compare(tiny_folder, seed, capturer)[1] for seed in range(6))
    assert capturer.num_captured > 6
    assert capturer.num_replayed > num_launched // 3, f"of {num_launched} steps"


def test_sizes_reach_the_most_rows_and_waste_less_than_8_of_them() -> None:
    assert graph_sizes(1) == (1,)
    assert graph_sizes(3) == (3, 2, 1)
    assert graph_sizes(64) == (64, 56, 48, 40, 32, 24, 16, 8, 4, 2, 1)
    sizes = graph_sizes(5000)
    assert sizes[0] == 512
    assert all(larger - smaller <= (16 if larger > 256 else 8) for larger, smaller in pairwise(sizes))
    graphs = make_graphs()
    assert [graphs.size_for(n) for n in (1, 2, 3, 5, 8, 9)] == [1, 2, 4, 8, 8, None]


def test_sizes_of_mixed_batches_reach_the_budget_and_pad_by_less_than_half() -> None:
    assert mixed_graph_sizes(40) == (40,)
    assert mixed_graph_sizes(512) == (512, 384, 256, 192, 128, 64)
    sizes = mixed_graph_sizes(8192)
    assert sizes[0] == 2048
    assert all(smaller >= larger / 2 for larger, smaller in pairwise(sizes))


def test_mixed_batches_have_graphs_while_launching_takes_longer_than_computing() -> None:
    assert mixed_graph_sizes(8192, 300) == (384, 256, 192, 128, 64)
    assert mixed_graph_sizes(8192, 10**6)[0] == 2048
    llama, qwen = (
        SimpleNamespace(
            hidden_size=hidden, intermediate_size=inner, num_heads=heads, num_kv_heads=8, head_dim=128, hf_config={}
        )
        for hidden, inner, heads in ((4096, 14336, 32), (1024, 3072, 16))
    )
    assert 250 < num_tokens_of_a_launch(llama) < 512  # type: ignore[arg-type]
    assert num_tokens_of_a_launch(qwen) > 2048  # type: ignore[arg-type]


def test_a_larger_graph_serves_only_what_it_pads_little() -> None:
    graphs = StepGraphs(
        lambda sources, inputs: inputs.token_ids[:, None].float(), FakeCapturer(), sizes=SIZES, max_model_len=24,
        buffer=torch.zeros(4096, dtype=torch.uint8), hidden=torch.zeros(8, 1),
        tables=torch.zeros((8, 6), dtype=torch.int32), max_padding=2,
    )  # fmt: skip
    graphs.capture(8)
    assert [graphs.captured_for(n) for n in (5, 6, 8, 9)] == [None, 8, 8, None]


def test_more_decodes_than_the_largest_graph_of_decodes_take_a_mixed_one(tiny_folder: str) -> None:
    llm = LLM(tiny_folder, dtype="float32", device="cpu", async_scheduling=True, max_num_seqs=8)
    launcher, capturer = launcher_of(llm), FakeCapturer()
    launcher.use_graphs(capturer, sizes=graph_sizes(2), hidden_size=64, dtype=torch.float32)
    launcher.capture_graphs()
    found = launcher.graphs.find(num_tokens=5, num_rows=5, num_logits=5)
    assert found is not None
    assert found.graphs is launcher.graphs.mixed
    few = launcher.graphs.find(num_tokens=2, num_rows=2, num_logits=2)
    assert few is not None
    assert few.graphs is launcher.graphs.decodes


def test_a_size_that_is_missing_is_served_by_a_larger_one_meanwhile() -> None:
    graphs = make_graphs()
    graphs.capture(8)
    graphs.capture(2)
    assert [graphs.captured_for(n) for n in (1, 2, 3, 8, 9)] == [2, 2, 8, 8, None]


def test_at_load_any_size_gets_a_graph_of_less_than_twice_that() -> None:
    graphs = make_graphs()
    assert graphs.sizes_at_load == list(SIZES)
    graphs = make_graphs(sizes=(100, 96, 64, 40, 32, 8))
    assert graphs.sizes_at_load == [100, 64, 32, 8]


def test_few_steps_wait_for_a_graph_and_none_of_the_first() -> None:
    graphs = make_graphs()
    assert graphs.next_idle() is None, "the first request must not find a capture in flight"
    assert [graphs.next_after_eager(2) for _ in range(STEPS_BETWEEN_CAPTURES)] == [None] * (
        STEPS_BETWEEN_CAPTURES - 1
    ) + [8], "the largest one first"
    graphs.capture(8)
    assert [graphs.next_after_eager(4) for _ in range(STEPS_BETWEEN_CAPTURES)] == [None] * (
        STEPS_BETWEEN_CAPTURES - 1
    ) + [4]


def test_an_idle_engine_captures_the_largest_missing_size_next() -> None:
    graphs = make_graphs()
    graphs.next_after_eager(1)
    captured = []
    while (size := graphs.next_idle()) is not None:
        graphs.capture(size)
        captured.append(size)
    assert captured == list(SIZES)
    assert all(map(graphs.has, SIZES))


def test_without_a_graph_that_cannot_be_captured_steps_go_on(caplog: pytest.LogCaptureFixture) -> None:
    graphs = make_graphs(FailingCapturer())
    graphs.next_after_eager(1)
    graphs.capture(8)
    assert "--enforce-eager" in caplog.text
    assert graphs.next_idle() is None
    assert graphs.size_for(1) is None


def test_at_load_a_graph_that_cannot_be_captured_is_the_last_one_tried(
    tiny_folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    launcher = launcher_of(LLM(tiny_folder, dtype="float32", device="cpu", async_scheduling=True))
    launcher.use_graphs(FailingCapturer(), sizes=SIZES, hidden_size=64, dtype=torch.float32)
    launcher.capture_graphs()
    assert caplog.text.count("--enforce-eager") == 2, "of the decodes, and of the mixed batches"
    assert not launcher.has_idle_work


def test_a_batch_is_padded_where_the_graph_reads_it() -> None:
    arrays = {
        "sources": np.array([-1, 4]), "token_ids": np.array([7, 0]), "positions": np.array([3, 9]),
        "slot_mapping": np.array([35, 89]), "query_start_loc": np.arange(3, dtype=np.int32),
        "seq_lens": np.array([4, 10], dtype=np.int32), "logits_indices": np.arange(2),
        "block_tables": np.array([[4, 0], [8, 9]], dtype=np.int32), "keys": np.array([1, 2]),
    }  # fmt: skip
    padded = pad(arrays, 4)
    assert padded is not None
    assert padded["seq_lens"].tolist() == [4, 10, 0, 0]
    assert padded["slot_mapping"].tolist() == [35, 89, -1, -1]
    assert padded["sources"].tolist() == [-1, 4, -1, -1]
    assert (padded["positions"].tolist(), padded["token_ids"].tolist()) == ([3, 9, 0, 0], [7, 0, 0, 0])
    assert padded["block_tables"] is arrays["block_tables"], "they go to tables of full width"
    layout, captured = layout_of(padded), layout_of(padding(4))
    assert {name: layout[name] for name in captured} == captured, "where a graph reads is where a step writes"


def test_a_replay_reads_the_buffer_and_tables_as_they_are_then() -> None:
    seen: list[list[Any]] = []

    def forward(sources: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        ragged = inputs.ragged
        seen.append([inputs.token_ids.tolist(), ragged.block_tables[:, :2].tolist()])
        assert (ragged.num_decodes, ragged.max_query_len, ragged.max_seq_len) == (2, 1, 24), "bounds, not lengths"
        return inputs.token_ids[:, None].float()

    graphs = make_graphs(forward=forward)
    graphs.capture(2)
    field = layout_of(padding(2))["token_ids"]
    graphs._buffer[field.offset : field.offset + 16].view(torch.int64).copy_(torch.tensor([5, 6]))
    hidden = graphs.replay(2, torch.tensor([[1], [3]], dtype=torch.int32))
    assert seen == [[[0, 0], [[0, 0], [0, 0]]], [[5, 6], [[1, 0], [3, 0]]]]
    assert hidden.tolist() == [[5.0], [6.0]]


def test_a_mixed_batch_is_padded_with_one_row_of_all_the_tokens_that_are_left() -> None:
    arrays = {
        "sources": np.array([3]),
        "token_ids": np.array([0, 7, 8]),
        "positions": np.array([9, 0, 1]),
        "slot_mapping": np.array([89, 16, 17]),
        "query_start_loc": np.array([0, 1, 3], dtype=np.int32),
        "seq_lens": np.array([10, 2], dtype=np.int32),
        "logits_indices": np.array([0]),
        "block_tables": np.array([[8, 9], [1, 0]], dtype=np.int32),
    }
    padded = pad(arrays, 8, 5)
    assert padded is not None
    assert padded["query_start_loc"].tolist() == [0, 1, 3, 8, 8, 8]
    assert padded["seq_lens"].tolist() == [10, 2, 0, 0, 0]
    assert padded["slot_mapping"].tolist() == [89, 16, 17] + [-1] * 5
    assert padded["sources"].tolist() == [3] + [-1] * 4
    assert padded["logits_indices"][0] == 0
    layout, captured = layout_of(padded), layout_of(padding(8, 5))
    assert {name: layout[name] for name in captured} == captured


class FakePlanner:
    """Plans that name the batch; a batch with more cached tokens than `most` has no room in a graph."""

    def __init__(self, most: int = 10**6) -> None:
        self._most = most

    def __call__(self, query_start_loc: Any, seq_lens: Any, *, is_fixed: bool = True) -> dict[str, Any] | None:
        if is_fixed and seq_lens.sum() > self._most:
            return None
        return {"plan_0": np.concatenate([np.diff(query_start_loc), seq_lens]).astype(np.int32)}


def test_a_work_list_is_of_the_padded_batch() -> None:
    arrays = {"query_start_loc": np.array([0, 1, 2]), "seq_lens": np.array([4, 10]), "keys": np.array([1, 2])}
    padded = pad(arrays, 4, planner=FakePlanner())
    assert padded is not None
    assert padded["plan_0"].tolist() == [1, 1, 1, 1, 4, 10, 0, 0]
    captured = layout_of({**padding(4), **(FakePlanner()(np.arange(5), np.zeros(4)) or {})})
    assert {name: layout_of(padded)[name] for name in captured} == captured
    assert pad(arrays, 4, planner=FakePlanner(most=13)) is None


def test_every_step_has_a_work_list_of_its_own_rows(tiny_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of graphs, steps whose lists are too large for one, and steps of an engine without graphs."""
    for most in (10**6, 40):
        planner, seen, capturer = FakePlanner(most), list[int](), FakeCapturer()
        monkeypatch.setattr(async_runner.ops, "decode_planner", lambda *_, planner=planner, **__: planner)
        llm = LLM(tiny_folder, dtype="float32", device="cpu", async_scheduling=True, max_num_seqs=4)
        launcher = launcher_of(llm)
        forward = launcher.stages.forward_pass.forward

        def checked(
            sources: Any, inputs: Inputs, forward: Any = forward, planner: Any = planner, seen: list[int] = seen
        ) -> torch.Tensor:
            ragged = inputs.ragged
            assert ragged.plans is not None
            expected = planner(ragged.query_start_loc.numpy(), ragged.seq_lens.numpy(), is_fixed=False)["plan_0"]
            assert ragged.plans["plan_0"].tolist() == expected.tolist()
            seen.append(int(ragged.seq_lens.sum()))
            return forward(sources, inputs)  # type: ignore[no-any-return]

        monkeypatch.setattr(launcher.stages.forward_pass, "forward", checked)
        launcher.use_graphs(capturer, sizes=graph_sizes(4), hidden_size=64, dtype=torch.float32)
        launcher.capture_graphs()
        params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
        llm.generate([[30], [40, 50], [60] * 20], params)
        assert max(seen) > 40
        assert capturer.num_replayed >= (8 if most > 40 else 1)


def test_nearly_all_steps_of_a_workload_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nano-vllm's: 256 requests at once, prompts and outputs of 100 to 1024 tokens. Nothing is captured under way."""
    config = {**CONFIGS["llama-gqa-tied"].to_dict(), "max_position_embeddings": 2048}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(graphs_module, "STEPS_BETWEEN_CAPTURES", 10**9)
    settings: dict[str, Any] = {"load_format": "dummy", "dtype": "float32", "device": "cpu", "async_scheduling": True}
    settings |= {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "num_kv_blocks": 20_000}
    llm = LLM(str(tmp_path), enable_prefix_caching=False, **settings)
    launcher, capturer = launcher_of(llm), FakeCapturer()
    monkeypatch.setattr(launcher._model, "forward", lambda inputs, cache: torch.zeros(len(inputs.logits_indices), 64))
    monkeypatch.setattr(launcher._model, "logits", lambda hidden: hidden[:, :2])
    launcher.use_graphs(capturer, sizes=graph_sizes(256), hidden_size=64, dtype=torch.float32)
    launcher.capture_graphs()
    launcher.count_late_work()
    assert capturer.num_captured == 9 + 6
    replayed: dict[bool, list[bool]] = {True: [], False: []}  # of decodes and mixed steps
    launch = launcher.launch

    def counted(batch: Batch) -> Any:
        before = capturer.num_replayed
        pending = launch(batch)
        replayed[batch.num_tokens == len(batch.rows)].append(capturer.num_replayed > before)
        return pending

    monkeypatch.setattr(launcher, "launch", counted)
    choose = random.Random(1)
    lengths = [(choose.randint(100, 1024), choose.randint(100, 1024)) for _ in range(256)]
    params = [SamplingParams(temperature=0, max_tokens=output, ignore_eos=True) for _, output in lengths]
    llm.generate([[2] * prompt for prompt, _ in lengths], params)
    print({name: (sum(steps), len(steps)) for name, steps in zip(("decode", "mixed"), replayed.values(), strict=True)})
    assert min(map(len, replayed.values())) > 50
    assert sum(replayed[True]) >= 0.95 * len(replayed[True])
    assert sum(replayed[False]) >= 0.9 * len(replayed[False])
    assert launcher.stats() == {"kernels_compiled": 0, "cuda_graphs_captured": 0}


@pytest.mark.parametrize("fields", [{"presence_penalty": 0.5}, {"logprobs": 2}, {"prompt_logprobs": 1}])
def test_steps_that_need_the_host_replay_too(tiny_folder: str, fields: dict[str, Any]) -> None:
    def answers(capturer: FakeCapturer | None) -> list[Any]:
        llm = LLM(tiny_folder, dtype="float32", device="cpu", async_scheduling=True, max_num_seqs=4)
        if capturer is not None:
            launcher_of(llm).use_graphs(capturer, sizes=graph_sizes(4), hidden_size=64, dtype=torch.float32)
            launcher_of(llm).capture_graphs()
        params = [SamplingParams(seed=seed, max_tokens=9, ignore_eos=True, **fields) for seed in range(3)]
        outputs = llm.generate([[30], [40, 50], [60] * 20], params)
        return [(output.outputs[0].token_ids, output.outputs[0].logprobs is None) for output in outputs]

    capturer = FakeCapturer()
    assert answers(capturer) == answers(None)
    assert capturer.num_replayed >= 8, "all but the step that gives prompt logprobs"


def test_drafts_are_verified_by_graphs(tiny_folder: str) -> None:
    def answers(capturer: FakeCapturer | None) -> tuple[list[Any], int]:
        speculation = {"method": "ngram", "prompt_lookup_min": 1, "adaptive": False}
        llm = LLM(tiny_folder, dtype="float32", device="cpu", async_scheduling=True, speculative_config=speculation)
        if capturer is not None:
            launcher_of(llm).use_graphs(capturer, sizes=graph_sizes(4), hidden_size=64, dtype=torch.float32)
            launcher_of(llm).capture_graphs()
            capturer.num_replayed = 0
        params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        outputs = llm.generate([[30] * 9, [40, 50] * 6, [60, 61, 62] * 5], params)
        return [output.outputs[0].token_ids for output in outputs], llm.engine.core.speculation.inner.num_draft_tokens

    capturer = FakeCapturer()
    assert answers(capturer) == answers(None)
    assert answers(None)[1] > 20
    assert capturer.num_replayed >= 8


@pytest.mark.parametrize("size", [1, 4])
def test_rows_that_pad_read_and_write_nothing(tiny_folder: str, size: int) -> None:
    llm = LLM(tiny_folder, dtype="float32", device="cpu", async_scheduling=True, num_kv_blocks=8)
    launcher = launcher_of(llm)
    launcher.use_graphs(FakeCapturer(), sizes=(4, 1), hidden_size=64, dtype=torch.float32)
    caches = launcher._cache.memory()
    for cache in caches:
        cache.fill_(float("nan"))
    graphs = launcher.graphs.decodes
    assert graphs is not None
    launcher.graphs.capture(size, graphs)
    assert graphs._hidden[:size].isfinite().all(), "they have read what was never written"
    assert all(cache.isnan().all() for cache in caches), "they have written"


async def test_an_idle_engine_captures_after_its_first_request(tiny_folder: str) -> None:
    async with running_engine(tiny_folder, async_scheduling=True, max_num_seqs=4) as engine:
        loop, all_captured = asyncio.get_running_loop(), asyncio.Event()
        capturer = FakeCapturer(lambda count: count == 3 and loop.call_soon_threadsafe(all_captured.set))
        engine.pipeline.launcher.use_graphs(capturer, sizes=graph_sizes(4), hidden_size=64, dtype=torch.float32)  # type: ignore[attr-defined]
        assert not engine.pipeline.launcher.has_idle_work
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        first = await collect(engine, [30, 40], params)
        assert capturer.num_replayed == 0
        await all_captured.wait()
        again = await collect(engine, [30, 40], params)
        assert again[0].token_ids == first[0].token_ids
        assert capturer.num_replayed >= 10


def test_the_router_knows_which_tokens_pad_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of decodes and of mixed steps; a GPU routes tokens of slot -1 to no expert."""
    save_model("qwen3-moe", tmp_path)
    monkeypatch.setitem(ops._BACKEND_OF_DEVICE, "cpu", "reference")  # op by op: a plan calls no op of Python's
    llm = LLM(str(tmp_path), dtype="float32", device="cpu", async_scheduling=True, max_num_seqs=8)
    launcher, capturer = launcher_of(llm), FakeCapturer()
    launcher.use_graphs(capturer, sizes=graph_sizes(8), hidden_size=64, dtype=torch.float32)
    launcher.capture_graphs()
    seen: set[tuple[int, int, int]] = set()  # tokens of a step, of its graph with a slot, of its graph
    num_real, route, launch = [0], ops.route, launcher.launch

    def counted(logits: torch.Tensor, args: Any, slot_mapping: torch.Tensor | None = None) -> Any:
        assert slot_mapping is not None
        seen.add((num_real[0], int((slot_mapping >= 0).sum()), len(logits)))
        return route(logits, args, slot_mapping)

    def launched(batch: Batch) -> Any:
        num_real[0] = batch.num_tokens
        return launch(batch)

    monkeypatch.setattr(ops, "route", counted)
    monkeypatch.setattr(launcher, "launch", launched)
    llm.generate([[30] * length for length in (1, 2, 9, 17, 5)], SamplingParams(temperature=0, max_tokens=4))
    assert all(num_tokens == num_with_slots for num_tokens, num_with_slots, _ in seen)
    assert any(num_tokens == 5 and size == 8 for num_tokens, _, size in seen), "decodes"
    assert any(num_tokens > 8 and size > num_tokens for num_tokens, _, size in seen), "mixed"


@pytest.mark.parametrize("name", ["qwen3-next", "mamba2", "lfm2"])
def test_recurrent_layers_go_through_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Random schedules with preemption, forks and drafts; rows that pad have no state."""
    save_model(name, tmp_path)
    monkeypatch.setattr(graphs_module, "STEPS_BETWEEN_CAPTURES", 2)
    capturer = FakeCapturer()
    num_launched = sum(compare(str(tmp_path), seed, capturer)[1] for seed in range(3))
    assert capturer.num_replayed > num_launched // 3, f"of {num_launched} steps"


def test_rows_with_adapters_and_without_go_through_graphs(tmp_path: Path) -> None:
    model = save_model("llama-gqa-tied", tmp_path / "model")
    paths = [save_adapter(tmp_path / f"a{seed}", random_adapter(model, seed=seed)) for seed in range(3)]
    requests = [*(LoRARequest(path.name, number, str(path)) for number, path in enumerate(paths, 1)), None]

    def answers(capturer: FakeCapturer | None) -> list[list[int]]:
        options: dict[str, Any] = {"dtype": "float32", "device": "cpu", "enable_lora": True, "max_num_seqs": 8}
        llm = LLM(str(tmp_path / "model"), async_scheduling=True, **options)
        if capturer is not None:
            launcher_of(llm).use_graphs(capturer, sizes=graph_sizes(8), hidden_size=64, dtype=torch.float32)
            launcher_of(llm).capture_graphs()
        params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
        prompts = [[30 + number, 40] * (1 + 9 * number) for number in range(8)]
        outputs = llm.generate(prompts, params, lora_request=requests * 2)
        return [list(output.outputs[0].token_ids) for output in outputs]

    capturer, plain = FakeCapturer(), answers(None)
    assert answers(capturer) == plain
    assert len({tuple(answer) for answer in plain}) == 8
    assert capturer.num_replayed >= 8


@pytest.mark.parametrize("is_seen", [False, True])
def test_graphs_that_no_card_has_run_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_seen: bool) -> None:
    monkeypatch.setattr(launching, "UNSEEN", set() if is_seen else launching.UNSEEN)
    models: dict[str, dict[str, Any]] = {"qwen3-next": {}, "llama-gqa-tied": {"enable_lora": True}, "llama-mha": {}}
    for name, options in models.items():
        save_model(name, tmp_path / name)
        llm = LLM(str(tmp_path / name), dtype="float32", device="cpu", async_scheduling=True, **options)
        reason = launching.graphs_refusal(launcher_of(llm)._model, llm.config)
        assert (reason is None) == (is_seen or name == "llama-mha")
