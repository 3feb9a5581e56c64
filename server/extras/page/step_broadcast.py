"""StepBroadcast: sends the engine's steps to all viewers, serialised once however many viewers there are.

Nothing is gathered while there are no viewers. A viewer that reads too slowly loses events, but never costs memory.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ....engine.errors import QueueFullError
from ....engine.extras.inspection.step_watcher import StepWatcher, block_map
from ....engine.language.workers.shares import most_of, sharer
from ...http.json_response import dumps
from ...http.sse import frame

if TYPE_CHECKING:
    from ....engine.core.request import Request
    from ....engine.core.scheduler import Scheduler
    from ....engine.serving.async_engine import AsyncEngine

Record = dict[str, Any]
# Keys of a record whose values are lists of requests, or of lists that begin with a request.
_ROWS = ("chunks", "decodes", "drafts", "forced", "admitted", "preempted", "stopped_at", "left_out")
_RUNNING = ("chunks", "decodes", "left_out")
BATCH_S = 0.05
_BLOCKS_EVERY = 10  # counted in batches
MAX_VIEWERS = 32
MAX_QUEUED_BYTES = 4 * 2**20  # per viewer
PING_S = 15.0
_PING = b": ping\n\n"
_ALL = ""  # owner of everything on a server without keys


def own_steps(steps: Iterable[Record], numbers: Container[int]) -> list[Record]:
    """Return the records with rows of these requests, and nothing else in them: no sums over other requests."""
    shares = ((step, _own_rows(step, numbers)) for step in steps)
    return [{key: step[key] for key in ("step", "start", "end")} | rows for step, rows in shares if rows]


def _own_rows(step: Record, numbers: Container[int]) -> Record:
    rows = {key: [row for row in step[key] if _number(row) in numbers] for key in _ROWS if key in step}
    rows = {key: own for key, own in rows.items() if own}
    return rows | {"running": sum(len(rows.get(key, ())) for key in _RUNNING)} if rows else {}


def _number(row: Any) -> int:
    number: int = row[0] if isinstance(row, list) else row
    return number


class Viewer:
    """One reader, and the events it has not read yet. `limited_to`: the only tenant whose requests it sees."""

    def __init__(self, owner: str, *, limited_to: str | None = None) -> None:
        self.owner = owner
        self.limited_to = limited_to
        self._chunks: deque[bytes] = deque()
        self._num_bytes = 0
        self._num_lost = 0
        self._has_more = asyncio.Event()
        self.is_over = False

    def end(self) -> None:
        """End the stream after the queued events."""
        self.is_over = True
        self._has_more.set()

    def put(self, chunk: bytes) -> None:
        """Queue events, or count them as lost if the viewer is too far behind."""
        if self._num_bytes + len(chunk) > MAX_QUEUED_BYTES:
            self._num_lost += 1
            return
        self._chunks.append(chunk)
        self._num_bytes += len(chunk)
        self._has_more.set()

    async def next(self) -> bytes:
        """Return all queued events, or a comment after a while without any."""
        try:
            async with asyncio.timeout(PING_S):
                await self._has_more.wait()
        except TimeoutError:
            return _PING
        chunks, num_lost = b"".join(self._chunks), self._num_lost
        self._chunks.clear()
        self._num_bytes = self._num_lost = 0
        self._has_more.clear()
        return chunks + (_event("lost", {"batches": num_lost}) if num_lost else b"")


class StepBroadcast:
    """Viewers of one engine."""

    def __init__(self) -> None:
        self._viewers: set[Viewer] = set()
        self._task: asyncio.Task[None] | None = None
        self._blocks = b""  # last map of the blocks
        self._tenants: dict[int, str] = {}  # tenants of the requests that have not ended, by number

    def chunks(self, engine: "AsyncEngine", *, owner: str, sees_all: bool = True) -> AsyncGenerator[bytes, None]:
        """Add a viewer. Yields `hello`, then `requests`, `steps`, `ended` and `blocks` events.

        A viewer who does not see all gets the owner's own rows, and no blocks. Raises QueueFullError.
        """
        num_own = sum(viewer.owner == owner for viewer in self._viewers)
        most = most_of(MAX_VIEWERS, num_own=num_own, num_all=len(self._viewers), is_divided=bool(sharer()))
        if num_own >= most:
            raise QueueFullError(f"{num_own} of your viewers look on already; close one", retry_after_s=5.0)
        return self._read(engine, Viewer(owner, limited_to=None if sees_all else owner))

    def end(self) -> None:
        """Disconnect all viewers; otherwise the server's end would wait for them."""
        for viewer in self._viewers:
            viewer.end()

    async def _read(self, engine: "AsyncEngine", viewer: Viewer) -> AsyncGenerator[bytes, None]:
        self._viewers.add(viewer)
        try:
            viewer.put(_event("hello", _hello(engine) | {"watches": "all" if viewer.limited_to is None else "own"}))
            if self._task is None:
                self._task = asyncio.create_task(self._send(engine), name="splitfuse-step-broadcast")
            else:
                self._send_requests(engine.view.current_requests(), {viewer})
                _put({viewer} if viewer.limited_to is None else (), self._blocks)
            while not viewer.is_over:
                yield await viewer.next()
        finally:
            self._viewers.discard(viewer)
            if not self._viewers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _send(self, engine: "AsyncEngine") -> None:
        most = engine.config.max_num_batched_tokens
        watcher = StepWatcher(engine.view.scheduler, max_num_batched_tokens=most)
        end = engine.view.listen(watcher)
        self._blocks, self._tenants = b"", {}
        try:
            self._send_requests(engine.view.current_requests(), self._viewers)
            count = 0
            while True:
                self._send_batch(watcher)
                if count % _BLOCKS_EVERY == 0:
                    self._send_blocks(engine)
                count += 1
                await asyncio.sleep(BATCH_S)
        finally:
            end()

    def _send_batch(self, watcher: StepWatcher) -> None:
        requests, steps, ended = watcher.take()
        self._send_requests(requests, self._viewers)
        for owner in {viewer.limited_to for viewer in self._viewers}:
            if owner is None:
                self._put(owner, steps, ended)
            else:
                own = {number for number, tenant in self._tenants.items() if tenant == owner}
                self._put(owner, own_steps(steps, own), [end for end in ended if end[0] in own])
        for number, _, _ in ended:
            self._tenants.pop(number, None)

    def _put(self, owner: str | None, steps: list[dict[str, Any]], ended: Sequence[Sequence[Any]]) -> None:
        chunk = (_event("steps", _shortened(steps)) if steps else b"") + (_event("ended", ended) if ended else b"")
        _put((viewer for viewer in self._viewers if viewer.limited_to == owner), chunk)

    def _send_blocks(self, engine: "AsyncEngine") -> None:
        before, self._blocks = self._blocks, _event("blocks", _blocks(engine.view.scheduler))
        if self._blocks != before:
            _put((viewer for viewer in self._viewers if viewer.limited_to is None), self._blocks)

    def _send_requests(self, requests: "list[Request]", viewers: set[Viewer]) -> None:
        self._tenants |= {request.arrival_order: request.tenant for request in requests}
        chunks: dict[tuple[str, str | None], bytes] = {}
        for viewer in viewers:
            kind = (viewer.owner, viewer.limited_to)
            if kind not in chunks:
                seen = [request for request in requests if viewer.limited_to in (None, request.tenant)]
                chunks[kind] = _event("requests", [_shape(request, viewer.owner) for request in seen]) if seen else b""
            _put([viewer], chunks[kind])


def _put(viewers: Iterable[Viewer], chunk: bytes) -> None:
    if chunk:
        for viewer in viewers:
            viewer.put(chunk)


def _event(name: str, value: Any) -> bytes:
    return frame(dumps(value), event=name).encode("ascii")


def _shortened(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace `decodes` by true if the same requests decoded in the previous record, which saves most bytes."""
    before = [{}, *steps]
    return [
        step | {"decodes": True} if step.get("decodes") and step["decodes"] == previous.get("decodes") else step
        for previous, step in zip(before, steps, strict=False)
    ]


def _shape(request: "Request", owner: str) -> dict[str, Any]:
    """Describe a request's shape, with its id if it is the viewer's own."""
    shape = {
        "number": request.arrival_order,
        "index": request.index,
        "arrival": request.arrival_time,
        "prompt": request.num_prompt_tokens,
        "max": request.max_num_tokens,
        "background": request.is_background,
        "running": request.first_scheduled_time is not None,
        "computed": request.num_computed_tokens,
    }
    return shape | {"id": request.request_id} if owner in (_ALL, request.tenant) else shape


def _hello(engine: "AsyncEngine") -> dict[str, Any]:
    """Describe the constant values, and the time by both clocks."""
    stats, config = engine.stats(), engine.config
    return {
        "now": time.monotonic(),
        "wall": time.time(),
        "model": stats["model"],
        "max_model_len": stats["max_model_len"],
        "batching_policy": config.batching_policy,
        "scheduling_policy": config.scheduling_policy,
        "budget": config.max_num_batched_tokens,
        "max_num_seqs": config.max_num_seqs,
        "block_size": stats["block_size"],
        "num_blocks": stats["num_blocks"],
        "target_itl_ms": getattr(config, "target_itl_ms", None),
    }


def _blocks(scheduler: "Scheduler") -> dict[str, Any]:
    return block_map(scheduler.blocks, scheduler.running, scheduler.waiting)
