"""uvicorn's HTTP/1.1 connection plus deadlines, limits, half-closed clients and our error envelope."""

import asyncio
import http
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .bounded_h11 import BoundedH11
from .connection_limit import ConnectionLimit
from .errors import RETRY_AFTER_S, Problem
from .json_response import dumps
from .sse import CHUNK_WRITER, FILLER

HEAD_DEADLINE_S = 10.0
STALL_S = 60.0  # a reader that takes nothing this long, with the socket's buffers full, counts as disconnected
REFUSED_S = 1.0  # time for a refused client to read the reason, and to stop sending
PROBE_S = 0.1  # wait from the end of the client's input to the first probe if the client is still there
_SLICE_BYTES = 16 * 1024  # parsed at once, so that most of a head that is far too long is never looked at
# Longer than what clients and balancers keep (Go and Traefik 90 s, Azure 120): no request meets a closing connection.
KEEP_ALIVE_S = 130
HAS_LEFT = "splitfuse.has_left"  # key in an ASGI scope, there once the connection is lost
_COMMENT = b":\n\n"  # comment in an event stream


class Connection(H11Protocol):
    """Connection that closes if a head is not complete in time or a reader takes nothing, so that neither can pile up.

    Never writes an access log, whatever handlers exist: paths hold result ids.
    """

    _head_deadline: asyncio.TimerHandle | None = None
    _stall_deadline: asyncio.TimerHandle | None = None
    _rest_deadline: asyncio.TimerHandle | None = None
    _next_probe: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, limit: ConnectionLimit | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn: BoundedH11 = BoundedH11()
        self.access_log = False
        self._limit = limit
        self._address: str | None = None  # address it is counted under
        self._refusal: str | None = None  # reason to refuse it; empty once its last answer is sent
        self._is_lost = False
        self._is_between_events = False
        self._has_room = asyncio.Event()
        self._has_room.set()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline for the first head, or for the end of a refused connection."""
        address = str((transport.get_extra_info("peername") or ("",))[0])
        self._refusal = self._limit.refusal(address) if self._limit is not None else None
        if self._refusal is not None:
            self.transport = transport
            self._head_deadline = self.loop.call_later(REFUSED_S, self._give_up)
            return
        if self._limit is not None:
            self._limit.add(address)
            self._address = address
        super().connection_made(transport)
        self._set_deadline(True)

    def data_received(self, data: bytes) -> None:
        """Parse in slices: h11 scans everything it has, and one read can bring 256 KiB."""
        if self._refusal is not None:
            self._say_refusal()
            return
        for start in range(0, len(data), _SLICE_BYTES):
            if self._refusal is None and not self.transport.is_closing():
                super().data_received(data[start : start + _SLICE_BYTES])
        self._watch_head()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep answering a client that has sent its request and closed its side.

        The client may also be gone; only writing can show that.
        """
        cycle = self.cycle
        is_waiting = cycle is not None and not cycle.more_body and not cycle.response_complete
        if is_waiting and self._next_probe is None:
            self._next_probe = self.loop.call_later(PROBE_S, self._probe, PROBE_S)
        return is_waiting and self.transport.get_extra_info("sslcontext") is None  # TLS closes both sides

    def handle_events(self) -> None:
        """Offer a ChunkWriter to the application for a new request whose answer is sent in chunks."""
        super().handle_events()
        scope = self._open_scope()
        if scope.get("http_version") == "1.1" and scope.get("method") != "HEAD":
            scope[CHUNK_WRITER] = self

    @property
    def has_room(self) -> bool:
        """False while the reader has fallen behind."""
        return self._has_room.is_set()

    async def write_chunk(self, data: bytes) -> None:
        """Write a slice once there is room, as `write_now` does."""
        await self._has_room.wait()
        self.write_now(data)

    def write_now(self, data: bytes) -> None:
        """Write a slice of a begun body of unknown length; write nothing after a disconnect.

        A slice is some whole events or lines, or a part of one. Writes the same bytes as h11, but bypasses ASGI's
        `send` wrappers and h11's state machine, which together take as long as everything else that a token costs.
        """
        self._is_between_events = not data or data.endswith(b"\n")
        if data and not self._is_lost:  # an empty chunk would end the body
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def on_response_complete(self) -> None:
        """Watch for a pipelined head that may already be arriving.

        A client that has closed its side sends no other request.
        """
        self._is_between_events = False
        super().on_response_complete()
        if self._next_probe is not None and self.cycle.response_complete:
            self.transport.close()
        self._watch_head()
        self._watch_rest()

    def pause_writing(self) -> None:
        """Start the stall deadline: the reader has fallen behind by all the buffers."""
        super().pause_writing()
        self._has_room.clear()
        self._stall_deadline = self.loop.call_later(STALL_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the stall deadline: the client reads again."""
        super().resume_writing()
        self._has_room.set()
        if self._stall_deadline is not None:
            self._stall_deadline.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers, and release a waiting writer."""
        self._is_lost = True
        self._has_room.set()
        scope = self._open_scope()
        scope[HAS_LEFT] = True
        scope.pop(CHUNK_WRITER, None)  # a cycle would wait for the collector
        self._set_deadline(False)
        for timer in (self._stall_deadline, self._rest_deadline, self._next_probe):
            if timer is not None:
                timer.cancel()
        if self._limit is not None and self._address is not None:
            self._limit.remove(self._address)
        super().connection_lost(exc)
        getattr(self.transport, "__dict__", {}).pop("_read_ready_cb", None)  # asyncio's cycle, 1 KB a connection

    def send_400_response(self, msg: str) -> None:
        """Answer input that is not an HTTP request we accept."""
        self.transport.write(_last_answer(Problem(400, self.conn.fault or msg)))
        if self.cycle is None or self.cycle.response_complete:
            self._drop_input()
        else:  # the body is broken, and the application may already be writing
            self.transport.close()

    def _say_refusal(self) -> None:
        if self._refusal:
            code, headers = "too_many_connections", {"Retry-After": str(RETRY_AFTER_S)}
            problem = Problem(503, self._refusal, "service_unavailable", code=code, headers=headers)
            self.transport.write(_last_answer(problem))
            self._drop_input()

    def _drop_input(self) -> None:
        """Close in a moment, and drop what arrives until then: closing at once could reset the last answer away."""
        self._refusal = ""
        self.conn = BoundedH11()  # in its first state: in others uvicorn cannot close the connection at a shutdown
        self.transport.write_eof()
        self.loop.call_later(REFUSED_S, self.transport.close)

    def _probe(self, delay_s: float) -> None:
        """Write bytes that clients ignore. If the client is gone, its system refuses them, and the next write fails."""
        if self._is_between_events:
            filler = self._open_scope().get(FILLER, _COMMENT)
            self.transport.write(b"%x\r\n%b\r\n" % (len(filler), filler))
        elif not self.cycle.response_started:
            if self.scope["http_version"] == "1.0":  # HTTP/1.0 has no such answer
                self.transport.close()
                return
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._next_probe = self.loop.call_later(2 * delay_s, self._probe, 2 * delay_s)

    def _open_scope(self) -> dict[str, Any]:
        """Return the last request's scope; empty before the first request, or if uvicorn ever keeps it elsewhere."""
        return getattr(self, "scope", None) or {}

    def _watch_head(self) -> None:
        """Set the deadline while bytes have arrived without a complete head."""
        self._set_deadline(self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0]))

    def _watch_rest(self, num_bytes_before: int = 0) -> None:
        """Let the rest of a complete answer stay in the buffer only while its reader takes some of it."""
        num_bytes = self.transport.get_write_buffer_size()
        if self._rest_deadline is not None:
            self._rest_deadline.cancel()
        if num_bytes and num_bytes == num_bytes_before:
            self.transport.abort()
        elif num_bytes:
            self._rest_deadline = self.loop.call_later(STALL_S, self._watch_rest, num_bytes)

    def _set_deadline(self, is_wanted: bool) -> None:
        if self._head_deadline is not None and not is_wanted:
            self._head_deadline.cancel()
            self._head_deadline = None
        elif self._head_deadline is None and is_wanted:
            self._head_deadline = self.loop.call_later(HEAD_DEADLINE_S, self._give_up)

    def _give_up(self) -> None:
        self._head_deadline = None
        self._say_refusal()
        self.transport.close()


def _last_answer(problem: Problem) -> bytes:
    """Build an answer to write past h11 before the connection is closed."""
    body = dumps(problem.envelope()).encode("ascii")
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
    headers["X-Content-Type-Options"] = "nosniff"
    lines = [f"HTTP/1.1 {problem.status} {http.HTTPStatus(problem.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in (headers | dict(problem.headers)).items()]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body
