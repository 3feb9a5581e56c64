"""A front and the engine's end of the link, over a fake engine in the same loop."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from fake_engine import FakeEngine, answer

from splitfuse.engine.core.outputs import OutputDelta, StepStats
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.errors import QueueFullError
from splitfuse.server.extras.fronts import engine_process, front_engine
from splitfuse.server.extras.fronts.engine_process import EngineServer
from splitfuse.server.extras.fronts.front_engine import FrontEngine
from splitfuse.server.results.durable.records import event_of
from splitfuse.server.settings import Settings

PROMPT = [5, 6, 7]


class Engine(FakeEngine):
    """FakeEngine as the engine's process has it: requests come as ids, with outputs of the core."""

    def __init__(self) -> None:
        super().__init__()
        more = {"architecture": "", "max_len_limit": 512, "eos_token_ids": (0,), "description": "", "hidden_size": 1}
        vars(self.model_config).update(more)
        self.loaded.states = self.loaded.op_by_op = None
        self.loaded.model_config, self.default_sampling_source = self.model_config, ""

    async def submit(self, *args: Any, **fields: Any) -> Any:
        handle: Any = await super().submit(*args, **fields)
        handle.requests = [
            SimpleNamespace(index=index, first_scheduled_time=1.0, num_cached_tokens=2, is_finished=False)
            for index in range(handle.params.n)
        ]
        return handle


@pytest.fixture
async def engine() -> Engine:
    engine = Engine()
    await engine.start()
    return engine


@pytest.fixture
async def server(engine: Engine) -> EngineServer:
    settings: Any = Settings()
    return EngineServer(engine, settings, "")  # type: ignore[arg-type]


@pytest.fixture
async def front(server: EngineServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FrontEngine]:
    ended = asyncio.Event()
    monkeypatch.setattr(front_engine.EngineProcess, "run", lambda _self: ended.wait())
    front = FrontEngine(Settings())
    listener = front._process._listener.dup()
    listening = await asyncio.get_running_loop().create_unix_server(server.connect, sock=listener)
    await front.start()
    yield front
    await front.stop()
    listening.close()
    for link in list(server.fronts):
        link.link.close()
    await asyncio.sleep(0)


async def ended(deltas: "asyncio.Queue[OutputDelta]", *, num_outputs: int = 1) -> list[OutputDelta]:
    """Return the deltas up to the last output's end."""
    found = list[OutputDelta]()
    while sum(delta.finish_reason is not None for delta in found) < num_outputs:
        found.append(await asyncio.wait_for(deltas.get(), 20))
    return found


async def test_outputs_come_as_they_were_sampled(front: FrontEngine, server: EngineServer, engine: Engine) -> None:
    deltas: asyncio.Queue[OutputDelta] = asyncio.Queue()
    params = SamplingParams(max_tokens=9, n=2, logprobs=1, prompt_logprobs=1, temperature=0.5)
    handle = await front.submit(PROMPT, params, deltas.put_nowait, tenant="someone")
    server.on_step(StepStats(*range(10)))
    found = await ended(deltas, num_outputs=2)
    for index in range(2):
        own = [delta for delta in found if delta.index == index]
        tokens = [token for delta in own for token in delta.token_ids]
        assert tokens == [answer(PROMPT, index, position) for position in range(9)]
        assert all(delta.logprobs is not None for delta in own if delta.token_ids)
        assert (own[-1].finish_reason, own[-1].request_id) == ("length", handle.request_id)
    assert engine.tenants == ["someone"]
    assert engine.params[0].temperature == 0.5
    assert handle.started


async def test_a_plain_stream_takes_no_json(
    front: FrontEngine, server: EngineServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = list[OutputDelta]()

    def pack(delta: OutputDelta) -> Any:
        packed.append(delta)
        return event_of(delta)

    monkeypatch.setattr(engine_process, "event_of", pack)
    deltas: asyncio.Queue[OutputDelta] = asyncio.Queue()
    await front.submit(PROMPT, SamplingParams(max_tokens=50), deltas.put_nowait)
    assert sum(len(delta.token_ids) for delta in await ended(deltas)) == 50
    assert len(packed) == 1, "the end alone"


async def test_an_abort_reaches_the_engine(front: FrontEngine, engine: Engine) -> None:
    engine.hold()
    deltas: asyncio.Queue[OutputDelta] = asyncio.Queue()
    handle = await front.submit(PROMPT, SamplingParams(max_tokens=50), deltas.put_nowait)
    front.abort(handle.request_id)
    assert (await ended(deltas))[-1].finish_reason == "abort"
    await asyncio.wait_for(engine.abort_seen.wait(), 20)
    assert engine.aborted == [handle.request_id]


async def test_a_front_that_is_gone_leaves_no_request(front: FrontEngine, engine: Engine) -> None:
    engine.hold()
    handle = await front.submit(PROMPT, SamplingParams(max_tokens=50), lambda delta: None)
    await front.stop()
    await asyncio.wait_for(engine.abort_seen.wait(), 20)
    assert engine.aborted == [handle.request_id]


async def test_a_full_queue_is_refused_with_its_time(front: FrontEngine, engine: Engine) -> None:
    engine.queue_is_full = True
    with pytest.raises(QueueFullError) as caught:
        await front.submit(PROMPT, SamplingParams(), lambda delta: None)
    assert caught.value.retry_after_s == 2.5


async def test_steps_and_changes_reach_the_front(front: FrontEngine, server: EngineServer, engine: Engine) -> None:
    seen: asyncio.Queue[StepStats] = asyncio.Queue()
    front.observe(SimpleNamespace(on_step=seen.put_nowait, on_output_finished=lambda *_: None))
    stats = StepStats(7, 12.5, 0.25, 3, 4, 5, 6, 7, 8, 1, ttfts=(0.1,), itls=(0.2, 0.3))
    server.on_step(stats)
    assert await asyncio.wait_for(seen.get(), 20) == stats
    engine.weights_version, engine.paused = 3, "sleeping"
    await front.refresh()
    assert (front.weights_version, front.paused) == (3, "sleeping")
    assert front.stats()["num_blocks"] == engine.stats()["num_blocks"]


async def test_a_front_that_reads_nothing_is_cut_off_and_goes_on_later(
    front: FrontEngine, server: EngineServer, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_process, "MAX_UNSENT", 0)
    monkeypatch.setattr(engine_process.Link, "num_unsent", 1)
    deltas: asyncio.Queue[OutputDelta] = asyncio.Queue()
    engine.hold()
    [first] = server.fronts
    submitting = asyncio.create_task(front.submit(PROMPT, SamplingParams(max_tokens=5), deltas.put_nowait))
    while first in server.fronts:  # noqa: ASYNC110  the loop's next turns
        await asyncio.sleep(0)
    monkeypatch.setattr(engine_process, "MAX_UNSENT", 1)
    await asyncio.wait_for(submitting, 60)
    await engine.allow()
    assert sum(len(delta.token_ids) for delta in await ended(deltas)) == 5
