"""AsyncEngine under load: order, aborts, failures of one, a full queue, draining, and nothing left behind."""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from engines import Collector, collect, running_engine

from splitfuse.engine import LLM, AsyncEngine, EngineConfig, SamplingParams
from splitfuse.engine.core.batch import Batch, Moves, RowFailure, RowOutput
from splitfuse.engine.errors import (
    ConstraintError,
    ContextLengthError,
    InvalidRequestError,
    QueueFullError,
    RequestFailedError,
    UnavailableError,
)
from splitfuse.engine.extras.weight_updates.control import EngineControl
from splitfuse.engine.language.workers.input_threads import LONG_CHARS

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def prompts(count: int, *, seed: int = 0, longest: int = 80) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(20, 270) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def blocks_are_free(engine: AsyncEngine) -> bool:
    stats = engine.stats()
    return bool(stats["num_free_blocks"] == stats["num_blocks"])


async def settle(engine: AsyncEngine) -> bool:
    await asyncio.wait_for(engine._idle.wait(), timeout=60)
    return engine.num_unfinished == 0


async def test_abort_frees_blocks_within_one_step(tiny_folder: str) -> None:
    async with running_engine(tiny_folder) as engine:
        sink = Collector()
        handle = await engine.submit([30] * 200, SamplingParams(max_tokens=300, ignore_eos=True), sink)
        await sink.until(3)
        steps = engine._steps[-1].step
        engine.abort(handle.request_id)
        assert sink.ended.is_set(), "it ends at once, its blocks with the step in flight"
        assert await settle(engine)
        assert engine._steps[-1].step <= steps + 1
        assert blocks_are_free(engine)
        assert sink.deltas[-1].finish_reason == "abort"
        assert sink.deltas[-1].metrics is not None
        assert not engine._dispatch._sinks
        engine.abort(handle.request_id)
        engine.abort("never seen")


def fault() -> None:
    raise RuntimeError("kernel fault")


class Sabotage:
    """A runner that raises whenever a marked request is in the batch, or spoils its row."""

    def __init__(
        self, engine: AsyncEngine, *, mark: int, spoil: bool = False, fail: Callable[[], object] = fault
    ) -> None:
        assert engine.is_loaded
        self._runner = engine.pipeline._runner._runner
        self._mark = mark
        self._spoil = spoil
        self._fail = fail
        engine.pipeline._runner._runner = self

    def move(self, moves: Moves) -> None:
        self._runner.move(moves)

    def run(self, batch: Batch) -> list[RowOutput]:
        marked = [row.request.token_ids[0] == self._mark for row in batch.rows]
        if any(marked) and not self._spoil:
            self._fail()
        return [
            RowOutput(failure=RowFailure("not finite")) if bad else result
            for bad, result in zip(marked, self._runner.run(batch), strict=True)
        ]


@pytest.mark.parametrize("spoil", [False, True])
async def test_a_culprit_fails_alone(tiny_folder: str, spoil: bool, caplog: pytest.LogCaptureFixture) -> None:
    many = prompts(12)
    expected = [
        output.outputs[0].token_ids for output in LLM(model=tiny_folder, dtype="float32").generate(many, GREEDY)
    ]
    async with running_engine(tiny_folder, max_num_batched_tokens=64) as engine:
        Sabotage(engine, mark=2, spoil=spoil)
        culprits = [asyncio.create_task(collect(engine, [2, 30 + i], GREEDY)) for i in range(3)]
        outputs = await asyncio.gather(*(collect(engine, prompt, GREEDY) for prompt in many))
        for culprit in culprits:
            with pytest.raises(RequestFailedError) as info:
                await culprit
            assert info.value.error_id in str(info.value)
            assert "kernel fault" not in str(info.value)
        assert [output[0].token_ids for output in outputs] == expected
        assert blocks_are_free(engine)
        assert engine.is_healthy
    if not spoil:
        assert "kernel fault" in caplog.text


async def test_many_failures_in_a_row_are_told_until_a_request_succeeds(tiny_folder: str) -> None:
    async with running_engine(tiny_folder) as engine:
        Sabotage(engine, mark=0)  # the token of the engine's own request too

        async def fail(count: int) -> None:
            for _ in range(count):
                with pytest.raises(RequestFailedError):
                    await collect(engine, [0], SamplingParams(n=3, max_tokens=2))

        await fail(9)
        await collect(engine, [3], GREEDY)
        await fail(9)
        assert not engine.is_failing, "a request succeeded in between"
        engine.abort((await engine.submit([3], GREEDY, Collector())).request_id)
        await fail(1)
        await settle(engine)
        assert engine.is_failing, "an abort is no success"
        assert engine.is_ready, "or none could ever succeed again"
        await collect(engine, [3], GREEDY)
        assert not engine.is_failing


async def test_failures_of_some_requests_are_not_the_engines(tiny_folder: str) -> None:
    async with running_engine(tiny_folder) as engine:
        Sabotage(engine, mark=2, spoil=True)
        for _ in range(35):
            with pytest.raises(RequestFailedError):
                await collect(engine, [2], GREEDY)
            assert not engine.is_failing
        await settle(engine)
        assert not engine.is_failing


async def test_what_requests_bring_on_themselves_is_no_failure(tiny_folder: str) -> None:
    fields = {"structured_outputs": {"regex": "x"}, "allowed_token_ids": (40,)}
    async with running_engine(tiny_folder) as engine:
        for _ in range(11):
            with pytest.raises(ConstraintError):
                await collect(engine, [3], SamplingParams(**fields))  # type: ignore[arg-type]
        assert not engine.is_failing


async def test_a_prompt_that_is_scored_may_fill_the_context(tiny_folder: str) -> None:
    async with running_engine(tiny_folder, max_model_len=32) as engine:
        params, prompt = SamplingParams(max_tokens=1, prompt_logprobs=0, ignore_eos=True), list(range(40, 72))
        (output,) = await collect(engine, prompt, params)
        assert (len(output.token_ids), output.finish_reason) == (1, "length")
        for fields in ({"max_tokens": 1}, {"max_tokens": 2, "prompt_logprobs": 0}):
            with pytest.raises(ContextLengthError):
                await collect(engine, prompt, SamplingParams(**fields))  # type: ignore[arg-type]


async def test_a_full_queue_refuses_with_a_time_to_come_back(tiny_folder: str) -> None:
    async with running_engine(tiny_folder, max_num_seqs=1, max_queue_size=2) as engine:
        sinks = [Collector() for _ in range(3)]
        params = SamplingParams(max_tokens=400, ignore_eos=True)
        await engine.submit([30], params, sinks[0])
        await sinks[0].until(1)
        await engine.submit([31], params, sinks[1])
        await engine.submit([32], params, sinks[2])
        with pytest.raises(QueueFullError) as info:
            await engine.submit([33], params, Collector())
        assert 1 <= info.value.retry_after_s <= 60


async def test_a_predicted_wait_refuses(tiny_folder: str) -> None:
    async with running_engine(tiny_folder, max_num_seqs=1, max_queue_seconds=1e-4, max_num_batched_tokens=16) as engine:
        params = SamplingParams(max_tokens=400, ignore_eos=True)
        first, second = Collector(), Collector()
        await engine.submit([30], params, first)
        await first.until(40)
        await engine.submit([31] * 400, SamplingParams(max_tokens=9), second)
        with pytest.raises(QueueFullError, match="max-queue-seconds"):
            await engine.submit([32], params, Collector())
        assert engine.stats()["predicted_wait_s"] > 1e-4


async def test_background_requests_take_no_place_in_the_queue(tiny_folder: str) -> None:
    async with running_engine(tiny_folder, max_num_seqs=1, max_queue_size=1) as engine:
        running, waiting, background = Collector(), Collector(), [Collector() for _ in range(3)]
        params = SamplingParams(max_tokens=400, ignore_eos=True)
        await engine.submit([30], params, running)
        await running.until(1)
        for sink in background:
            await engine.submit([31], SamplingParams(max_tokens=1, is_background=True), sink)
        await engine.submit([32], params, waiting)
        with pytest.raises(QueueFullError):
            await engine.submit([33], params, Collector())
        assert not any(sink.deltas for sink in background)


async def test_draining_refuses_new_requests_and_finishes_the_rest(tiny_folder: str) -> None:
    async with running_engine(tiny_folder) as engine:
        sink = Collector()
        await engine.submit([30], GREEDY, sink)
        drained = asyncio.create_task(engine.drain(10.0))
        await asyncio.sleep(0)
        assert not engine.is_ready
        with pytest.raises(UnavailableError):
            await engine.submit([30], GREEDY, Collector())
        await drained
        assert sink.deltas[-1].finish_reason == "length"


async def test_stop_ends_every_request(tiny_folder: str) -> None:
    engine = AsyncEngine(EngineConfig(model=tiny_folder, dtype="float32", max_num_seqs=2))
    with pytest.raises(UnavailableError):
        await engine.submit([30], GREEDY, Collector())
    await engine.start()
    sinks = [Collector() for _ in range(5)]
    for sink in sinks:
        await engine.submit([30], SamplingParams(max_tokens=500, ignore_eos=True), sink)
    await engine.stop()
    assert all(sink.deltas[-1].finish_reason == "abort" for sink in sinks)


async def test_a_broken_loop_is_unhealthy_and_ends_every_request(tiny_folder: str) -> None:
    async with running_engine(tiny_folder) as engine:
        sink = Collector()

        def broken(*_: object) -> None:
            raise RuntimeError("a bug of ours")

        assert engine.is_loaded
        engine.core.schedule = broken  # type: ignore[assignment]
        await engine.submit([30], GREEDY, sink)
        await sink.ended.wait()
        assert sink.deltas[-1].error is not None
        assert not engine.is_healthy
        with pytest.raises(UnavailableError):
            await engine.submit([30], GREEDY, Collector())


async def test_a_step_that_fails_between_steps_ends_the_engine(
    tiny_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_engine(tiny_folder) as engine:
        monkeypatch.setattr(type(engine.pipeline), "is_busy", True)
        monkeypatch.setattr(engine, "_step", Mock(side_effect=ZeroDivisionError))
        with pytest.raises(UnavailableError, match="has stopped"):
            async with engine.between_steps():
                raise AssertionError("the step in flight has failed")
        await engine._dead.wait()
        assert not engine.is_healthy


async def test_a_hold_that_fails_lets_later_requests_in(tiny_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_engine(tiny_folder) as engine:
        monkeypatch.setattr(engine, "between_steps", Mock(side_effect=ZeroDivisionError))
        with pytest.raises(ZeroDivisionError):
            await EngineControl(engine).pause(mode="wait")
        assert engine.admits.is_set()


class Hung(Sabotage):
    """Sabotage whose step hangs until `may_end`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.entered, self.may_end = threading.Event(), threading.Event()
        super().__init__(engine, mark=-1)

    def run(self, batch: Batch) -> list[RowOutput]:
        self.entered.set()
        self.may_end.wait()
        return self._runner.run(batch)


async def test_an_aborted_request_does_not_hide_a_hung_step(tiny_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_engine(tiny_folder) as engine:
        hung = Hung(engine)
        handle = await engine.submit([30], GREEDY, Collector())
        await asyncio.to_thread(hung.entered.wait)
        engine.abort(handle.request_id)
        assert (engine.num_unfinished, engine.has_work) == (0, True)
        assert engine.is_healthy
        monkeypatch.setattr("splitfuse.engine.serving.async_engine.STALL_S", 0.0)
        monkeypatch.setattr("splitfuse.engine.serving.async_engine._FIRST_STALL_S", 0.0)
        assert not engine.is_healthy
        hung.may_end.set()
        await settle(engine)
        assert not engine.has_work


async def test_only_time_in_which_the_process_runs_counts_as_a_hang(
    tiny_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_s = 0.0  # the clock of this loop alone: on the process's, other threads' loops would sleep for that hour
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time.monotonic() + stopped_s)
    async with running_engine(tiny_folder) as engine:
        hung, sink = Hung(engine), Collector()
        await engine.submit([30], GREEDY, sink)
        await asyncio.to_thread(hung.entered.wait)
        stopped_s = 3600.0  # SIGSTOP, or a virtual machine that was paused
        for _ in range(3):  # until the timers that became due meanwhile have gone off
            assert engine.is_healthy
            await asyncio.sleep(0)
        monkeypatch.setattr("splitfuse.engine.serving.async_engine._REST_S", 60.0)
        assert not engine.is_healthy
        hung.may_end.set()
        await sink.ended.wait()
        assert engine.is_healthy


async def test_a_failing_sink_costs_no_other_request(tiny_folder: str) -> None:
    async with running_engine(tiny_folder) as engine:
        await engine.submit([30], GREEDY, lambda delta: 1 / 0)  # type: ignore[arg-type, return-value]
        output = await collect(engine, [30], GREEDY)
        assert output[0].finish_reason == "length"


REFUSED = [
    ("", {}, InvalidRequestError), ([], {}, InvalidRequestError), ([271], {}, InvalidRequestError),
    ([-1], {}, InvalidRequestError), ([True], {}, InvalidRequestError), ("\ud800", {}, InvalidRequestError),
    ({"text": "x"}, {}, InvalidRequestError), ([5] * 512, {}, ContextLengthError),
    ([5] * 500, {"max_tokens": 13}, ContextLengthError), ([5], {"max_length": 513}, ContextLengthError),
    ([5] * 8, {"max_length": 8}, InvalidRequestError), ([5], {"stop_token_ids": [271]}, InvalidRequestError),
    ([5], {"logit_bias": {"271": 1}}, InvalidRequestError), ([5], {"allowed_token_ids": [-1]}, InvalidRequestError),
    ([5], {"max_length": 4, "min_tokens": 4}, InvalidRequestError),
]  # fmt: skip


async def test_refusals(tiny_folder: str) -> None:
    async with running_engine(tiny_folder) as engine:
        for prompt, fields, error in REFUSED:
            try:
                await engine.submit(prompt, SamplingParams(**fields), Collector())  # type: ignore[arg-type]
            except error:
                assert engine.num_unfinished == 0, (prompt, fields)
            else:
                raise AssertionError(f"{prompt} with {fields} was taken")


async def test_rope_scaling_answers_prompts_beyond_the_models_own_length(tiny_folder: str) -> None:
    async with running_engine(tiny_folder, rope_scaling={"rope_type": "yarn", "factor": 2}) as engine:
        (output,) = await collect(engine, [5] * 600, SamplingParams(max_tokens=2, ignore_eos=True))
        assert (engine.max_model_len, len(output.token_ids)) == (1024, 2)
        with pytest.raises(ContextLengthError, match="--rope-scaling"):
            await engine.submit([5] * 1024, SamplingParams(), Collector())


async def test_limits_count_prompt_and_output(tiny_folder: str) -> None:
    async with running_engine(tiny_folder, num_kv_blocks=10, block_size=16) as engine:
        for prompt_len, fields, expected in [
            (150, {}, 10),  # a default is cut to the 160 tokens of the cache
            (10, {"max_length": 13}, 3),
            (10, {"max_length": 50, "max_tokens": 2}, 2),
            (100, {"truncate_prompt_tokens": 8, "max_tokens": 4}, 4),
        ]:
            params = SamplingParams(ignore_eos=True, **fields)  # type: ignore[arg-type]
            output = (await collect(engine, [30] * prompt_len, params))[0]
            assert len(output.token_ids) == expected
            assert output.finish_reason == "length"
        with pytest.raises(ContextLengthError, match="KV cache"):
            await engine.submit([5] * 160, SamplingParams(), Collector())


@pytest.mark.parametrize(
    ("settings", "longest"), [({}, 256), ({"long_prefill_token_threshold": 0}, 400), ({"target_itl_ms": 1e6}, 400)]
)
async def test_on_a_cpu_streams_wait_for_pieces_of_a_prompt(
    tiny_folder: str, settings: dict[str, int], longest: int
) -> None:
    async with running_engine(tiny_folder, **settings) as engine:
        await collect(engine, [20 + i % 200 for i in range(400)], SamplingParams(temperature=0, max_tokens=1))
        assert max(step["num_prefill_tokens"] for step in engine.stats()["steps"]) == longest


async def test_observers_and_a_closed_pipe_cost_nothing(
    tiny_folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def on_step(self, stats: object) -> None:
            raise RuntimeError("mine")

        def on_output_finished(self, metrics: object, finish_reason: str) -> None:
            raise RuntimeError("mine too")

    def closed(*_: object, **__: object) -> None:
        raise BrokenPipeError

    async with running_engine(tiny_folder, log_steps=True) as engine:
        monkeypatch.setattr("splitfuse.engine.serving.async_engine.print", closed, raising=False)
        engine.observe(Broken())
        assert (await collect(engine, [30], GREEDY))[0].finish_reason == "length"
        assert engine.is_healthy
    assert "mine too" in caplog.text


async def test_more_outputs_than_the_queue_holds_run_on_an_idle_engine(tiny_folder: str) -> None:
    async with running_engine(tiny_folder, max_queue_size=2, max_num_seqs=2) as engine:
        outputs = await collect(engine, [30], SamplingParams(n=5, max_tokens=3, ignore_eos=True))
        assert all(len(output.token_ids) == 3 for output in outputs)


async def test_parameters_that_allow_no_token_are_refused_and_extremes_still_draw(tiny_folder: str) -> None:
    refused: list[dict[str, Any]] = [
        {"allowed_token_ids": (1,), "min_tokens": 1},  # 1 is the end token
        {"allowed_token_ids": (1, 5), "stop_token_ids": (5,), "min_tokens": 1},
        {"allowed_token_ids": (22,), "bad_words": ("(",)},
        {"allowed_token_ids": (1, 22, 23), "bad_words": ("(", ")"), "min_tokens": 1},
    ]
    taken: list[dict[str, Any]] = [
        {"allowed_token_ids": (40,), "bad_words": ("(",)},
        {"repetition_penalty": 1e-38},
        {"repetition_penalty": 1e-300, "temperature": 1e-9},
        {"logit_bias": dict.fromkeys(range(200), -100.0)},
    ]
    async with running_engine(tiny_folder) as engine:
        for fields in refused:
            with pytest.raises(InvalidRequestError, match="allowed_token_ids"):
                await engine.submit([5], SamplingParams(**fields), Collector())
        for fields in taken:
            params = SamplingParams(max_tokens=4, ignore_eos=True, **fields)
            assert (await collect(engine, [40], params))[0].finish_reason == "length", fields
        params = SamplingParams(max_tokens=4, ignore_eos=True, allowed_token_ids=[22], bad_words=["(("])
        with pytest.raises(ConstraintError, match="bad_words") as info:
            await collect(engine, [40], params)
        assert info.value.param == "allowed_token_ids", "a ban that leaves no token after some ends the request"


async def test_stop_while_loading_leaves_no_task(tiny_folder: str) -> None:
    before = asyncio.all_tasks()
    engine = AsyncEngine(EngineConfig(model=tiny_folder, dtype="float32"))
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    await engine.stop()
    await asyncio.wait([starting])
    assert asyncio.all_tasks() <= before | {starting}


@contextlib.contextmanager
def busy_input_threads(engine: AsyncEngine) -> Iterator[None]:
    """No prompt is tokenized meanwhile."""
    gate = threading.Event()
    for length in (1, 1, LONG_CHARS + 1):
        asyncio.create_task(engine._input_threads.run(gate.wait, length=length))  # noqa: RUF006  it ends with the gate
    try:
        yield
    finally:
        gate.set()


async def test_prompts_being_tokenized_count_as_waiting(tiny_folder: str) -> None:
    async with running_engine(tiny_folder, max_queue_size=4, max_queue_chars=100) as engine:
        sinks = [Collector(2), Collector()]
        with busy_input_threads(engine):
            submits = [
                asyncio.create_task(engine.submit("a" * 40, SamplingParams(n=2, max_tokens=2), sinks[0])),
                asyncio.create_task(engine.submit("b" * 40, SamplingParams(max_tokens=2), sinks[1])),
            ]
            await asyncio.sleep(0)
            with pytest.raises(QueueFullError, match="3 requests wait") as info:
                await engine.submit("c", SamplingParams(n=2), Collector())
            assert 1 <= info.value.retry_after_s <= 60
            for refused in (engine.submit("c" * 21, GREEDY, Collector()), engine.prompts.encode("c" * 21)):
                with pytest.raises(QueueFullError, match="--max-queue-chars is 100"):
                    await refused
            fourth = asyncio.create_task(engine.prompts.encode("c"))
            await asyncio.sleep(0)
            with pytest.raises(QueueFullError, match="4 requests wait"):
                await engine.prompts.decode([30])
        await asyncio.gather(*submits)
        assert len(await fourth) == 1
        await asyncio.gather(*(sink.ended.wait() for sink in sinks))
        assert (await collect(engine, "c", SamplingParams(max_tokens=2, ignore_eos=True)))[0].finish_reason == "length"


async def test_a_text_that_is_too_long_by_its_characters_is_not_tokenized(tiny_folder: str) -> None:
    async with running_engine(tiny_folder) as engine:
        with busy_input_threads(engine):
            for prompt in ("a" * 5000, {"prompt": "a" * 5000, "add_special_tokens": False}):
                for fields in ({}, {"truncate_prompt_tokens": 600}):
                    with pytest.raises(ContextLengthError, match="the prompt has at least 1000 tokens"):
                        await engine.submit(prompt, SamplingParams(**fields), Collector())  # type: ignore[arg-type]


async def test_a_long_text_is_truncated_as_in_full(tiny_folder: str) -> None:
    async with running_engine(tiny_folder) as engine:
        for text in ("abc " * 5000, "abcd" * 5000):
            sink = Collector()
            params = SamplingParams(truncate_prompt_tokens=50, max_tokens=1, ignore_eos=True)
            handle = await engine.submit(text, params, sink)
            assert handle.prompt_token_ids == (await engine.prompts.encode(text))[-50:]
            await sink.ended.wait()
