"""A front over a scripted engine: text, stop strings, refusals, aborts, and requests that outlive an engine."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from splitfuse.engine.config import DEMO_FOLDER, ResolvedConfig
from splitfuse.engine.core.outputs import OutputDelta, RequestMetrics
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.errors import ConfigError, EngineDeadError, QueueFullError, UnavailableError
from splitfuse.engine.serving.submitted_request import SubmittedRequest
from splitfuse.server.extras.fronts import front_engine
from splitfuse.server.extras.fronts.front_engine import FrontEngine
from splitfuse.server.extras.fronts.link import Link, pack_error
from splitfuse.server.results.durable.records import event_of
from splitfuse.server.settings import Settings

METRICS = RequestMetrics(0.0, 1.0, 2.0, 3.0, 5, 99, 4, 0)


class Engine:
    """The engine's process as a script: each message comes out of `messages`, each frame is sent by the test."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.starts: asyncio.Queue[asyncio.Future[int]] = asyncio.Queue()
        self.link = Link(self._take, lambda: None)
        self.fingerprint = "a"

    def _take(self, message: Any, words: Sequence[int], _figures: Sequence[float]) -> None:
        if message[0] == "stats":
            self.link.send([["answer", message[1], {"num_running": 0}, None]])
        elif message[0] != "prepare":
            self.messages.put_nowait((message, list(words)))

    async def run(self) -> int:
        """Be EngineProcess.run."""
        end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.starts.put_nowait(end)
        return await end

    def connect(self) -> Link:
        """Make the end of a new connection."""
        self.link = Link(self._take, lambda: None, self.greet)
        return self.link

    def greet(self) -> None:
        config = ResolvedConfig.of(Settings().engine_config(), device="cpu")
        loaded = {"max_model_len": 256, "device": "cpu", "dtype": "torch.float32", "num_blocks": 64}
        facts = {
            "config": {item.name: getattr(config, item.name) for item in dataclasses.fields(config)},
            "tokenizer": str(DEMO_FOLDER),
            "model": {"vocab_size": 4096, "max_len_limit": 256, "eos_token_ids": [0], "quantization": None},
            "generates": True,
            "default_sampling_params": {},
            "default_sampling_source": "",
            "loaded": loaded | {"states": None, "inexact": None, "op_by_op": None},
        }
        self.link.send([["facts", facts], ["state", self.state()]])

    def state(self) -> dict[str, Any]:
        volatile = {"weights_version": 0, "weights_path": str(DEMO_FOLDER), "paused": None, "is_healthy": True}
        return volatile | {"fingerprint": self.fingerprint, "variants": [], "variant_fingerprints": {}}

    async def submission(self) -> tuple[str, int, dict[str, Any], list[int]]:
        """Return the next submission: its id, slot, fields and prompt."""
        (name, request_id, slot, fields), words = await self.messages.get()
        assert name == "submit"
        return request_id, slot, fields, words

    def take(self, request_id: str) -> None:
        """Accept a submission."""
        self.link.send([["answer", request_id, None, None]])

    def end(self, slot: int, reason: str, tokens: Sequence[int] = ()) -> None:
        """End an output."""
        delta = OutputDelta("", 0, "", tuple(tokens), finish_reason=reason, metrics=METRICS)
        self.link.send([["delta", slot, event_of(delta)]])


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine()
    monkeypatch.setattr(front_engine.EngineProcess, "run", lambda _self: engine.run())
    return engine


@pytest.fixture
async def front(engine: Engine) -> AsyncIterator[FrontEngine]:
    front = FrontEngine(Settings())
    server = await listen(engine, front)
    await front.start()
    yield front
    await front.stop()
    server.close()
    engine.link.close()


async def listen(engine: Engine, front: FrontEngine) -> asyncio.Server:
    listener = front._process._listener
    return await asyncio.get_running_loop().create_unix_server(engine.connect, sock=listener.dup())


class Reader:
    """Sink of a request."""

    def __init__(self) -> None:
        self.deltas: asyncio.Queue[OutputDelta] = asyncio.Queue()

    async def until_end(self) -> tuple[str, list[int], OutputDelta]:
        text, tokens = "", list[int]()
        while True:
            delta = await asyncio.wait_for(self.deltas.get(), 20)
            text += delta.text
            tokens += delta.token_ids
            if delta.finish_reason is not None:
                return text, tokens, delta


async def submitted(
    front: FrontEngine, engine: Engine, **fields: Any
) -> tuple[asyncio.Task[SubmittedRequest], Reader, str, int]:
    """Submit and return before the engine has answered."""
    reader = Reader()

    async def submit() -> SubmittedRequest:
        handle = await front.submit("Once upon a time", SamplingParams(**fields), reader.deltas.put_nowait)
        assert reader.deltas.empty(), "the caller notes the request first"
        return handle

    task = asyncio.create_task(submit())
    request_id, slot, _, words = await engine.submission()
    assert front.tokenizer is not None
    assert words == front.tokenizer.encode("Once upon a time")
    return task, reader, request_id, slot


def ids_of(front: FrontEngine, text: str) -> list[int]:
    assert front.tokenizer is not None
    return front.tokenizer.encode(text, add_special_tokens=False)


async def test_tokens_become_text_and_none_comes_before_the_answer(front: FrontEngine, engine: Engine) -> None:
    task, reader, request_id, slot = await submitted(front, engine)
    tokens = ids_of(front, " there was a little girl")
    engine.link.send([["began", slot, 1.0, 4]], [number for token in tokens[:-1] for number in (slot, token)])
    await engine_has_been_heard(front)
    assert reader.deltas.empty()
    engine.take(request_id)
    engine.end(slot, "length", tokens[-1:])
    handle = await task
    assert handle.started
    text, got, last = await reader.until_end()
    assert (text, got, last.finish_reason) == (" there was a little girl", tokens, "length")
    assert last.metrics is not None
    assert (last.metrics.num_output_tokens, last.metrics.num_cached_tokens) == (len(tokens), 4)
    assert front.num_unfinished == 0


async def engine_has_been_heard(front: FrontEngine) -> None:
    """Return once all that the engine has sent was read: it answers in order."""
    await front.call("stats")


async def test_a_stop_string_ends_the_request_there(front: FrontEngine, engine: Engine) -> None:
    task, reader, request_id, slot = await submitted(front, engine, stop=["little"])
    engine.take(request_id)
    await task
    tokens = ids_of(front, " there was a little girl")
    engine.link.send([], [number for token in tokens for number in (slot, token)])
    message, _ = await engine.messages.get()
    assert message == ["abort", request_id, 0]
    assert front.num_unfinished == 1, "the engine's figures of it are still to come"
    engine.end(slot, "abort", [5])
    text, got, last = await reader.until_end()
    assert text == " there was a "
    assert (last.finish_reason, last.stop_reason) == ("stop", "little")
    assert got == tokens[: len(got)]
    assert last.metrics is not None
    assert last.metrics.num_output_tokens == len(got) < len(tokens)


async def test_a_refusal_leaves_nothing(front: FrontEngine, engine: Engine) -> None:
    task, reader, request_id, _ = await submitted(front, engine)
    error = QueueFullError("the queue is full", retry_after_s=3.0)
    engine.link.send([["answer", request_id, None, pack_error(error)]])
    with pytest.raises(QueueFullError, match="the queue is full") as caught:
        await task
    assert caught.value.retry_after_s == 3.0
    assert front.num_unfinished == 0
    assert reader.deltas.empty()
    await front.drain(timeout=20)


async def test_an_abort_is_told_at_once(front: FrontEngine, engine: Engine) -> None:
    task, reader, request_id, slot = await submitted(front, engine)
    engine.take(request_id)
    await task
    engine.link.send([], [slot, ids_of(front, " there")[0]])
    await engine_has_been_heard(front)
    front.abort(request_id)
    assert front.num_unfinished == 0
    _, got, last = await reader.until_end()
    assert (len(got), last.finish_reason) == (1, "abort")
    assert (await engine.messages.get())[0] == ["abort", request_id, None]
    engine.link.send([], [slot, 7])  # on its way when the abort came
    await engine_has_been_heard(front)
    assert reader.deltas.empty()


async def test_a_cancelled_submission_is_aborted(front: FrontEngine, engine: Engine) -> None:
    task, _, request_id, _ = await submitted(front, engine)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await engine.messages.get())[0] == ["abort", request_id, None]
    assert front.num_unfinished == 0


async def die(front: FrontEngine, engine: Engine) -> None:
    """End the engine's process, and wait for the next one."""
    engine.link.close()
    (await engine.starts.get()).set_result(-9)
    while front.core.link is not None:  # noqa: ASYNC110  the loop's next turns
        await asyncio.sleep(0)
    with pytest.raises(UnavailableError):
        await front.submit("Once", SamplingParams(), lambda delta: None)
    assert not front.is_ready
    assert not front.is_healthy


async def test_the_next_engine_goes_on(front: FrontEngine, engine: Engine) -> None:
    task, reader, request_id, slot = await submitted(front, engine, n=2, seed=3)
    engine.take(request_id)
    await task
    tokens = ids_of(front, " there was")
    engine.link.send([], [slot, tokens[0]])
    engine.end(slot + 1, "length", tokens[:1])
    await engine_has_been_heard(front)
    await die(front, engine)
    again, slot, fields, _ = await engine.submission()
    assert again == request_id
    assert (fields["seed"], fields["is_new"], fields["params"]["seed"]) == (3, False, 3)
    assert [(output[0], output[-1]) for output in fields["outputs"]] == [([tokens[0]], False), ([tokens[0]], True)]
    engine.take(request_id)
    engine.end(slot, "length", tokens[1:])
    ends = [await reader.until_end(), await reader.until_end()]
    assert {(text, len(got)) for text, got, _ in ends} == {(" there there", 2), (" was", 1)}
    assert front.is_ready


async def test_a_request_fails_with_its_third_engine(front: FrontEngine, engine: Engine) -> None:
    task, reader, request_id, _ = await submitted(front, engine)
    engine.take(request_id)
    await task
    for _ in range(2):
        await die(front, engine)
        await engine.submission()
        engine.take(request_id)
    await die(front, engine)
    _, _, last = await reader.until_end()
    assert last.finish_reason == "error"
    assert isinstance(last.error, EngineDeadError)
    assert not front.has_died


async def test_a_request_of_other_weights_fails(front: FrontEngine, engine: Engine) -> None:
    task, reader, request_id, _ = await submitted(front, engine)
    engine.take(request_id)
    await task
    engine.fingerprint = "b"
    await die(front, engine)
    assert isinstance((await reader.until_end())[2].error, EngineDeadError)


async def test_an_engine_that_cannot_start_is_a_wrong_setting(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = [["failed", pack_error(ConfigError("too little memory; try --max-model-len 99"))]]
    monkeypatch.setattr(engine, "greet", lambda: engine.link.send(refused))
    front = FrontEngine(Settings())
    server = await listen(engine, front)
    with pytest.raises(ConfigError, match="try --max-model-len 99"):
        await front.start()
    server.close()
    engine.link.close()
