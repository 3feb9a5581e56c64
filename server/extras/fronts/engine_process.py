"""EngineProcess: starts the engine in a process of its own; `main` is that process: steps and no text.

python -m splitfuse.server.extras.fronts.engine_process FOLDER LISTENER: settings come as a line of JSON on standard
input, whose end ends the process. LISTENER is the descriptor of the socket for fronts, FOLDER is for a socket of HTTP.
"""

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....engine.core.outputs import KnownOutput, OutputDelta, RequestMetrics, StepStats
from ....engine.errors import SplitfuseError
from ...process.exit import HUNG_EXIT, end_hung
from ...results.durable.records import event_of
from ...server_settings import ServerSettings
from . import FRONTS_OWN
from .link import Link, pack_error, pack_stats, read_params

if TYPE_CHECKING:
    from ....engine.core.request import Request
    from ....engine.serving.async_engine import AsyncEngine

logger = logging.getLogger("splitfuse.engine")
PROGRAM = ["-P", "-m", "splitfuse.server.extras.fronts.engine_process"]  # tests run their own around `main`
MAX_UNSENT = 64 * 2**20  # bytes for a front that reads nothing, a minute or two of 256 streams; then it is cut off
ENGINE_SOCKET, HTTP_SOCKET = "engine", "http"  # names in the folder: for fronts, and for requests passed on
# Attributes of ModelConfig that a front needs: to read it takes the family's class, and so torch.
_MODEL = ("architecture", "vocab_size", "max_len_limit", "eos_token_ids", "description", "hf_config", "hidden_size")
_LOOK_S = 1.0
_END_S = 10.0


class EngineProcess:
    """The engine's process and the socket at which fronts find it, in a folder of their own."""

    def __init__(self, settings: ServerSettings, folder: str) -> None:
        self._folder = folder
        self._settings = _as_json(settings)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(Path(folder, ENGINE_SOCKET)))
        self._listener.listen()

    async def run(self) -> int:
        """Run the process to its end, or until this is cancelled. Return its status."""
        fd = self._listener.fileno()
        command = [sys.executable, *PROGRAM, self._folder, str(fd)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, pass_fds=[fd], start_new_session=True)
        assert process.stdin is not None
        try:
            process.stdin.write(self._settings)
            return await process.wait()
        finally:
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), _END_S)
            except TimeoutError:
                process.kill()
                await process.wait()

    def close(self) -> None:
        """Close the socket."""
        self._listener.close()


def _as_json(settings: ServerSettings) -> bytes:
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    values |= {"api_key": settings.keys, "admin_key": settings.admin_keys}
    defaults = {field.name: field.default for field in dataclasses.fields(settings)}
    changed = {name: value for name, value in values.items() if value != defaults[name] and name not in FRONTS_OWN}
    kind = type(settings)
    return json.dumps({"class": (kind.__module__, kind.__name__)} | changed).encode() + b"\n"


class FrontLink:
    """The engine's end of the connection to one front."""

    def __init__(self, server: "EngineServer") -> None:
        self._server, self._engine = server, server.engine
        self.link = Link(self._on_frame, self._on_lost, self._greet)
        self._tasks: dict[str, asyncio.Task[None]] = {}  # submissions by the ids of unfinished requests
        self._waiting: list[tuple[int, Request]] = []  # outputs that have not begun, with their slots
        self._records: list[Any] = []
        self._words: list[int] = []
        self._figures: list[float] = []
        self._is_due = False
        self._version = -1  # weights' version that the front knows

    def _greet(self) -> None:
        self.send("facts", self._server.facts())
        self.send_state()

    def note_step(self, figures: Sequence[float]) -> None:
        """Send the figures of a step with its deltas."""
        self._figures.extend(figures)
        if self._waiting:
            begun = [(slot, r) for slot, r in self._waiting if r.first_scheduled_time is not None]
            self._waiting = [item for item in self._waiting if item not in begun and not item[1].is_finished]
            self._records += [["began", slot, r.first_scheduled_time, r.num_cached_tokens] for slot, r in begun]
        self._send_soon()

    def send(self, *record: Any) -> None:
        """Send a record with the next frame."""
        self._records.append(record)
        self._send_soon()

    def send_state(self) -> None:
        """Send what may change while the engine runs."""
        self._version = self._engine.weights_version
        self.send("state", self._server.state())

    def _send_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_due = False
        self.link.send(self._records, self._words, self._figures)
        self._records, self._words, self._figures = [], [], []
        if self.link.num_unsent > MAX_UNSENT:
            logger.warning("a front reads nothing: its %d requests end, unless it comes back", len(self._tasks))
            self.link.close()

    def _on_lost(self) -> None:
        self._server.fronts.discard(self)
        for request_id in list(self._tasks):
            self._abort(request_id, None)

    def _on_frame(self, message: Any, words: Sequence[int], _figures: Sequence[float]) -> None:
        name, *values = message
        if name == "submit":
            self._tasks[values[0]] = asyncio.create_task(self._submit(list(words), *values))
        elif name == "abort":
            self._abort(*values)
        else:
            self._server.keep(self._answer(name, *values))

    def _abort(self, request_id: str, index: int | None) -> None:
        if (task := self._tasks.get(request_id)) is not None and not task.done():
            task.cancel()
        self._engine.abort(request_id, index)

    async def _submit(self, token_ids: list[int], request_id: str, slot: int, fields: dict[str, Any]) -> None:
        from ....engine.serving.submitted_request import Resumed  # here: the owner of the process needs no engine

        outputs = tuple(KnownOutput(tuple(tokens), *more) for tokens, *more in fields["outputs"])
        resumed = Resumed(fields["seed"], outputs, fields["arrival_time"], is_new=fields["is_new"])
        sink = partial(self._send_delta, slot, {index for index, known in enumerate(outputs) if not known.has_ended})
        try:
            params, own = read_params(fields["params"]), {"request_id": request_id, "tenant": fields["tenant"]}
            handle = await self._engine.submit(token_ids, params, sink, resumed=resumed, **own)
        except BaseException as exc:
            self._tasks.pop(request_id, None)
            self.send("answer", request_id, None, pack_error(exc))
            if not isinstance(exc, SplitfuseError | asyncio.CancelledError):
                logger.exception("request %s could not be submitted", request_id)
            return
        self._waiting += [(slot + request.index, request) for request in handle.requests]
        self.send("answer", request_id, None, None)

    def _send_delta(self, slot: int, unfinished: set[int], delta: OutputDelta) -> None:
        """Take a delta: one plain token is a pair, all else a record."""
        if self._engine.weights_version != self._version:
            self._flush()  # these were sampled with the weights before
            self.send_state()
        tokens = delta.token_ids
        has_more = delta.logprobs is not None or delta.prompt_logprobs is not None or delta.forced_from is not None
        if len(tokens) == 1 and delta.finish_reason is None and not has_more:
            self._words += (slot + delta.index, tokens[0])
        else:
            self._records.append(["delta", slot + delta.index, event_of(delta)])
        self._send_soon()
        if delta.finish_reason is not None:
            unfinished.discard(delta.index)
            if not unfinished:
                del self._tasks[delta.request_id]

    async def _answer(self, name: str, call_id: str, *values: Any) -> None:
        try:
            self.send("answer", call_id, await getattr(self._server, f"on_{name}")(self, *values), None)
        except Exception as exc:
            if not isinstance(exc, SplitfuseError):
                logger.exception("a front's call of %s failed", name)
            self.send("answer", call_id, None, pack_error(exc))


class EngineServer:
    """The engine for its fronts: an EngineObserver that sends each step's figures."""

    def __init__(self, engine: "AsyncEngine", settings: ServerSettings, folder: str) -> None:
        self.engine = engine
        self.fronts: set[FrontLink] = set()
        self._settings, self._folder = settings, folder
        self._tasks: set[asyncio.Task[Any]] = set()
        self._http: asyncio.Task[Any] | None = None
        self._last_state: dict[str, Any] = {}

    def on_step(self, stats: StepStats) -> None:
        """Send a step to all fronts."""
        figures = pack_stats(stats)
        for front in self.fronts:
            front.note_step(figures)

    def on_output_finished(self, metrics: RequestMetrics, finish_reason: str) -> None:
        """Do nothing: the delta has both."""

    def keep(self, work: Any) -> None:
        """Run a coroutine in a task."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def connect(self) -> Link:
        """Make the end of a new connection, and greet the front."""
        front = FrontLink(self)
        self.fronts.add(front)
        return front.link

    async def watch(self) -> None:
        """Tell fronts of changes that no step tells. Runs until cancelled."""
        while True:
            if (state := self.state()) != self._last_state:
                self._last_state = state
                for front in self.fronts:
                    front.send_state()
            await asyncio.sleep(_LOOK_S)

    def facts(self) -> dict[str, Any]:
        """Return what was decided when the engine started, for JSON."""
        from ....engine.formats.checkpoint import tokenizer_source

        engine, loaded, model = self.engine, self.engine.loaded, self.engine.model_config
        quantization = None if model.quantization is None else model.quantization.name
        path = engine.weights_path
        assert path is not None
        return {
            "config": {field.name: getattr(engine.config, field.name) for field in dataclasses.fields(engine.config)},
            "tokenizer": None if engine.tokenizer is None else str(tokenizer_source(engine.config, path)),
            "model": {name: getattr(model, name) for name in _MODEL} | {"quantization": quantization},
            "generates": engine.generates,
            "default_sampling_params": dict(engine.default_sampling_params),
            "default_sampling_source": engine.default_sampling_source,
            "loaded": {
                "max_model_len": loaded.max_model_len,
                "device": str(loaded.device),
                "dtype": str(loaded.dtype),
                "num_blocks": loaded.cache.num_blocks,
                "states": None if loaded.states is None else str(loaded.states),
                "inexact": loaded.inexact,
                "op_by_op": loaded.op_by_op,
            },
        }

    def state(self) -> dict[str, Any]:
        """Return what may change while the engine runs, for JSON."""
        engine = self.engine
        variants = [(item.name, str(item.path), item.digest, item.created) for item in engine.variants]
        return {
            "weights_version": engine.weights_version,
            "weights_path": None if engine.weights_path is None else str(engine.weights_path),
            "paused": engine.paused,
            "is_failing": engine.is_failing,
            "is_healthy": engine.is_healthy,
            "fingerprint": engine.fingerprint,
            "variants": variants,
            "variant_fingerprints": {name: engine.fingerprint_of(name) for name, *_ in variants},
        }

    # Calls of fronts.

    async def on_stats(self, front: FrontLink) -> dict[str, Any]:
        """Return the snapshot."""
        front.send_state()
        return self.engine.stats()

    async def on_metrics(self, _front: FrontLink, request_id: str) -> list[Any]:
        """Return the metrics so far of a request's outputs, in events."""
        found = self.engine.view.metrics(request_id).items()
        return [event_of(OutputDelta("", index, "", (), finish_reason="", metrics=metrics)) for index, metrics in found]

    async def on_prepare(self, _front: FrontLink) -> None:
        """Prepare structured output."""
        await self.engine.prepare()

    async def on_http(self, _front: FrontLink) -> None:
        """Answer HTTP for routes that need the engine itself, from the first call on."""
        if self._http is None:
            from ...process.process import server_of
            from ...process.start import listen_at

            listener = listen_at(Path(self._folder, HTTP_SOCKET))
            self._http = asyncio.create_task(server_of(self._settings, self.engine).serve(sockets=[listener]))


async def serve(settings: ServerSettings, folder: str, listener: socket.socket, stop: asyncio.Event) -> int:
    """Load the engine and serve fronts until `stop`. Return the process's status."""
    from ....engine.serving.async_engine import AsyncEngine

    loop = asyncio.get_running_loop()
    engine = AsyncEngine(settings.engine_config(), makes_text=False)
    server = EngineServer(engine, settings, folder)
    try:
        await engine.start()
    except SplitfuseError as exc:
        failed = [["failed", pack_error(exc)]]

        def refuse() -> Link:
            link = Link(lambda *_: None, int, lambda: link.send(failed))
            return link

        refusing = await loop.create_unix_server(refuse, sock=listener)
        await stop.wait()
        refusing.close()
        return 2
    engine.observe(server)
    fronts = await loop.create_unix_server(server.connect, sock=listener)
    watches = [asyncio.create_task(server.watch()), asyncio.create_task(_watch(settings, engine))]
    ends = [asyncio.create_task(stop.wait()), asyncio.create_task(engine.wait_dead())]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for task in (*watches, *ends):
        task.cancel()
    fronts.close()
    status = 1 if engine.has_died else 0
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(engine.stop(), _END_S / 2)
    return status


async def _watch(settings: ServerSettings, engine: "AsyncEngine") -> None:
    """End the process if a step hangs: its owner starts another one."""
    from ...process.watchdog import Watchdog

    if settings.step_timeout == 0:
        return
    most = lambda: engine.config.max_num_batched_tokens  # noqa: E731
    watchdog = Watchdog(lambda: engine.has_work, timeout=settings.step_timeout, max_num_batched_tokens=most)
    engine.observe(watchdog)
    await watchdog.watch(lambda why: end_hung(HUNG_EXIT, why))


def main(folder: str, fd: str) -> int:
    """Be the engine's process."""
    from ...process.log_format import set_up_logging

    for number in (signal.SIGINT, signal.SIGTERM):  # fronts drain, and then end this process
        signal.signal(number, signal.SIG_IGN)
    values = json.loads(sys.stdin.readline())
    module, kind = values.pop("class")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    settings: ServerSettings = getattr(import_module(module), kind)(**values)
    set_up_logging(settings.log_format)

    async def run() -> int:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        threading.Thread(target=_end_with_owner, args=(loop, stop), daemon=True).start()
        return await serve(settings, folder, socket.socket(fileno=int(fd)), stop)

    return asyncio.run(run())


def _end_with_owner(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    sys.stdin.read()
    loop.call_soon_threadsafe(stop.set)
    time.sleep(_END_S)
    os._exit(HUNG_EXIT)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
