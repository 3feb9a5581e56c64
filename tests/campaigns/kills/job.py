"""Job of the kills campaign: the events read of it over all the servers that ran it."""

import contextlib
import json
import threading
from typing import Any

import httpx
from kills.bodies import Kind

from splitfuse.client.sse import ServerSentEvent, SSEParser


class Job:
    """Job of an accepted request. A thread reads its stream while a server lives, from the last server's last event."""

    def __init__(self, kind: Kind, seq_id: str) -> None:
        self.kind = kind
        self.seq_id = seq_id
        self.num_crashes = 0
        self.token_ids: dict[int, list[int]] = {}  # tokens of every output, in order of their events
        self.result: dict[str, Any] | None = None  # the result in the stream's last event
        self.faults: list[str] = []
        self._last_id = -1
        self._thread: threading.Thread | None = None

    @property
    def has_ended(self) -> bool:
        """True if the stream has delivered its last event."""
        return self.result is not None

    def read_from(self, url: str) -> None:
        """Resume the stream in a thread."""
        self._thread = threading.Thread(target=self._read, args=(url,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait for the thread, whose server is dead."""
        if self._thread is not None:
            self._thread.join(30)

    def _read(self, url: str) -> None:
        headers = {"Last-Event-ID": str(self._last_id)} if self._last_id >= 0 else {}
        parser = SSEParser()
        with contextlib.suppress(httpx.HTTPError):
            path = f"{url}/result/{self.seq_id}/stream"
            with httpx.stream("GET", path, headers=headers, timeout=60, trust_env=False) as answer:
                if answer.status_code != 200:
                    if answer.status_code != 503:
                        self.faults.append(f"{self.kind.name}: {answer.status_code} for its stream")
                    return
                for chunk in answer.iter_bytes():
                    for event in parser.feed(chunk):
                        self._take(event)

    def _take(self, event: ServerSentEvent) -> None:
        data = json.loads(event.data)
        if event.event != "token":
            self.result = data
            return
        event_id = int(event.id or -1)
        if event_id != self._last_id + 1:
            self.faults.append(f"{self.kind.name}: event {event_id} after {self._last_id}")
        self._last_id = event_id
        self.token_ids.setdefault(data["index"], []).extend(data["token_ids"])
