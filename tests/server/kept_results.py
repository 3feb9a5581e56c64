"""Makes durable result stores, reads streams of kept results, and compares results of different runs."""

import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx
import pytest
from serving import ServerProcess, parse_events

from splitfuse.server.jobs.job_index import JobIndex, ResultLimits
from splitfuse.server.jobs.result_store import ResultStore
from splitfuse.server.results.durable.durable_backend import DurableBackend
from splitfuse.server.results.durable.stored_jobs import StoredJobs

ARGS = ("--dtype", "float32", "--seed", "5")  # what makes runs comparable
PROMPT = "Once upon a time there was a"


def durable_results(
    limits: ResultLimits,
    *,
    open_store: Callable[[], Any],
    kinds: Mapping[str, Any],
    backend: type[DurableBackend] = DurableBackend,
    **more: Any,
) -> Any:
    """A ResultStore over a store on disk; Any, for tests reach into its backend."""
    index = JobIndex(limits)
    stored = StoredJobs(kinds, ttl=limits.ttl)
    return ResultStore(index, backend(index, stored, open_store=open_store, **more))


@contextlib.asynccontextmanager
async def open_results(limits: ResultLimits, **options: Any) -> AsyncIterator[Any]:
    """Yield an open store like `durable_results`, and close it."""
    results = durable_results(limits, **options)
    await results.open()
    try:
        yield results
    finally:
        await results.close()


class Reader(threading.Thread):
    """Reader of a stream, to its end or the server's."""

    def __init__(self, url: str, *, after: int = -1, **headers: str) -> None:
        super().__init__(daemon=True)
        self.text = ""
        self._url = url
        self._headers = headers | ({"Last-Event-ID": str(after)} if after >= 0 else {})
        self.start()

    def until_begun(self) -> None:
        """Wait for the first event."""
        while not self.text:
            assert self.is_alive() or self.text, "the stream ended without an event"
            time.sleep(0.01)

    def run(self) -> None:
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream("GET", self._url, headers=self._headers, timeout=60) as response,
        ):
            for part in response.iter_text() if response.status_code == 200 else ():
                self.text += part

    def events(self) -> list[dict[str, Any]]:
        """Whole events only."""
        self.join(240)
        return parse_events(self.text[: self.text.rfind("\n\n") + 2])


def whole_result(client: httpx.Client, seq_id: str) -> dict[str, Any]:
    """Return a result once it has ended, however long that takes; poll again on 503, while no server has the job."""
    while True:
        answer = client.get(f"/result/{seq_id}?wait=60")
        found: dict[str, Any] = answer.json()
        if answer.status_code == 503:
            assert found["error"]["code"] in ("resuming", "loading"), answer.text
            time.sleep(0.1)
        elif found.get("status") not in ("queued", "running", "in_progress"):
            assert answer.status_code == 200, answer.text
            return found


def until_draining(server: ServerProcess) -> None:
    """Wait until a server that was sent SIGTERM acts on it: /ready refuses, or nothing listens any more."""
    with contextlib.suppress(httpx.TransportError):
        while httpx.get(f"{server.url}/ready", timeout=60).status_code == 200:
            pass


def comparable(result: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a result that do not depend on when and where it ran."""
    left_out = ("seq_id", "timings", "attempt", "weights_version")  # a stored result has no version
    usage = {name: count for name, count in result["usage"].items() if name != "cached_tokens"}
    return rounded({name: value for name, value in result.items() if name not in left_out} | {"usage": usage})


def rounded(value: Any) -> Any:
    """Round logprobs, which differ in their last digits from batch to batch, with and without a crash."""
    if isinstance(value, dict):
        return {name: rounded(child) for name, child in value.items()}
    return [rounded(child) for child in value] if isinstance(value, list) else approx(value)


def approx(value: Any) -> Any:
    return pytest.approx(value, abs=1e-4) if isinstance(value, float) else value
