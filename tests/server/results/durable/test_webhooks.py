"""Messages that results have ended: signed, tried again for a day, and sent by one server at a time."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from splitfuse.engine.errors import ConfigError
from splitfuse.server.jobs.webhook_targets import WebhookTargets
from splitfuse.server.results.durable.records import Changes, Ending, JobRow
from splitfuse.server.results.durable.sqlite_store import SqliteStore
from splitfuse.server.results.durable.webhooks import BACKOFFS_S, Webhooks, new_client
from splitfuse.server.settings import Settings

SECRET = b"a secret of 24 bytes and more"
FLOOD = bytes(10**5)
URL = "https://ops.example.com/done?from=here"


class Receiver:
    """Receiver that gives the test's answers and keeps the messages."""

    def __init__(self, *statuses: int | Exception) -> None:
        self.requests: list[httpx.Request] = []
        self._statuses = list(statuses)
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(self._answer), follow_redirects=False)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        status = self._statuses.pop(0)
        if isinstance(status, Exception):
            raise status
        return httpx.Response(status, headers={"location": "https://elsewhere.example.com"})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """Yield a store with one ended job whose end is to be delivered."""
    store = SqliteStore(tmp_path / "results.db")
    row = JobRow(num=1, seq_id="job1", owner="me", created=100.0, request="{}", first_segment=1)
    store.commit(Changes(accepted=[row], endings=[Ending(1, "completed", 200.5, 900.0, "[]", "ops")]))
    yield store
    store.close()


class Sender:
    """Webhooks over a store, at a time that is set."""

    def __init__(self, store: SqliteStore, *, urls: dict[str, str] | None = None) -> None:
        self.now = 1000.75
        self._store = store
        targets = WebhookTargets({"ops": URL} if urls is None else urls, SECRET)
        self._webhooks = Webhooks(targets, self._use, clock=lambda: self.now)

    async def _use(self, function: Any) -> Any:
        return function(self._store)

    async def send(self, receiver: Receiver) -> int:
        """Send the messages that are due. Returns the number of requests."""
        before = len(receiver.requests)
        await asyncio.gather(*await self._webhooks.begin_due(receiver.client))
        return len(receiver.requests) - before


async def test_a_message_is_signed_and_sent_once(store: SqliteStore) -> None:
    receiver, sender = Receiver(204), Sender(store)
    assert [await sender.send(receiver), await sender.send(receiver)] == [1, 0]
    request = receiver.requests[0]
    assert str(request.url) == URL
    data = {"id": "job1", "status": "completed"}
    assert json.loads(request.content) == {
        "type": "result.completed", "timestamp": "1970-01-01T00:03:20Z", "data": data,
    }  # fmt: skip
    assert (request.headers["webhook-id"], request.headers["webhook-timestamp"]) == ("msg_job1", "1000")
    digest = hmac.new(SECRET, b"msg_job1.1000." + request.content, hashlib.sha256).digest()
    assert request.headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()


async def test_it_is_tried_again_for_most_of_a_day(store: SqliteStore) -> None:
    answers = [500, httpx.ConnectError("refused"), 302, 404, httpx.ReadTimeout("slow"), 503, 429, 500]
    receiver, sender = Receiver(*answers), Sender(store)
    assert await sender.send(receiver) == 1
    for backoff in BACKOFFS_S:
        sender.now += backoff - 0.25
        assert await sender.send(receiver) == 0
        sender.now += 0.25
        assert await sender.send(receiver) == 1
    assert len(receiver.requests) == len(answers) == 8
    assert {str(request.url) for request in receiver.requests} == {URL}, "it follows no redirect"
    assert {request.headers["webhook-id"] for request in receiver.requests} == {"msg_job1"}
    assert 18 * 3600 < sum(BACKOFFS_S) < 24 * 3600
    sender.now += 10**6
    assert await sender.send(receiver) == 0, "the eighth try was the last"


@pytest.mark.parametrize("urls", [{"ops": URL}, {}], ids=["gone", "no longer named"])
async def test_a_target_that_is_gone_is_not_asked_again(store: SqliteStore, urls: dict[str, str]) -> None:
    receiver, sender = Receiver(410), Sender(store, urls=urls)
    assert await sender.send(receiver) == len(urls)
    sender.now += 10**6
    assert await sender.send(receiver) == 0


async def test_of_two_servers_one_sends(store: SqliteStore) -> None:
    due = store.due_webhooks(1000.0, limit=9)
    assert store.begin_webhook(due[0], next_try=1001.0)
    assert not store.begin_webhook(due[0], next_try=1001.0)
    assert await Sender(store).send(Receiver()) == 0, "it is not due before the next try"


@pytest.mark.parametrize("how", ["one", "all"])
async def test_what_is_deleted_is_not_told(store: SqliteStore, how: str) -> None:
    if how == "one":
        store.commit(Changes(deleted=["job1"]))
    else:
        store.delete_owner("me")
    assert await Sender(store).send(Receiver()) == 0


@contextlib.contextmanager
def target(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Yield the URL of a target that reads a message's head and then answers."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.request.recv(65536)
                answer(self.request)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads, block_on_close, request_queue_size = True, False, 64

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/done"
        server.shutdown()


def dribble(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for number in range(1000):  # 5 minutes, unless the other side ends it
        connection.sendall(b"X-%d: a\r\n" % number)
        time.sleep(0.3)


def flood(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 500 No\r\nContent-Length: 3000000000\r\n\r\n")
    for _ in range(30_000):
        connection.sendall(FLOOD)


def memory() -> int:
    """Return the resident bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("attack", [dribble, flood])
async def test_a_bad_target_delays_no_other_and_takes_no_memory(
    tmp_path: Path, attack: Callable[[socket.socket], None]
) -> None:
    store, healthy, all_sent = SqliteStore(tmp_path / "many.db"), list[float](), asyncio.Event()
    loop = asyncio.get_running_loop()

    def answer(connection: socket.socket) -> None:
        healthy.append(time.monotonic())
        connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
        if len(healthy) == 3:
            loop.call_soon_threadsafe(all_sent.set)

    async def use(function: Any) -> Any:
        return function(store)

    names = ["bad"] * 40 + ["ops"] * 3  # the bad target's 40 are due first
    rows = [
        JobRow(num=num, seq_id=f"job{num:02}", owner="me", created=1.0, request="{}", first_segment=1)
        for num, _ in enumerate(names)
    ]
    ends = [Ending(num, "completed", 2.0, 9e9, "[]", name) for num, name in enumerate(names)]
    store.commit(Changes(accepted=rows, endings=ends))
    before = memory()
    with target(attack) as bad, target(answer) as ops:
        targets = WebhookTargets({"bad": bad, "ops": ops}, SECRET)
        running = asyncio.create_task(Webhooks(targets, use, clock=time.time, timeout_s=240.0).run())
        async with asyncio.timeout(60):
            await all_sent.wait()
        await asyncio.sleep(0.5)  # more of the attack
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert len(healthy) == 3
    assert memory() - before < 10 * 2**20
    store.close()


async def test_a_try_has_a_limit_in_all(store: SqliteStore) -> None:
    async def use(function: Any) -> Any:
        return function(store)

    with target(dribble) as url:
        webhooks = Webhooks(WebhookTargets({"ops": url}, SECRET), use, clock=lambda: 1000.0, timeout_s=0.5)
        async with new_client() as client:
            began = time.monotonic()
            await asyncio.gather(*await webhooks.begin_due(client))
    assert 0.4 < time.monotonic() - began < 60, "the target takes 5 minutes"
    assert store.due_webhooks(1001.0, limit=9)[0].num_tries == 1, "it is tried again"


async def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    received = list[bytes]()

    def answer(connection: socket.socket) -> None:
        received.append(b"")
        connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    with target(answer) as url:
        async with new_client() as client:
            assert (await client.post(url)).status_code == 204
    assert received


SECRET_LINE = "whsec_" + base64.b64encode(SECRET).decode()


@pytest.mark.parametrize(
    ("secret", "more", "reason"),
    [
        (None, {}, "needs --webhook-secret-file"),
        ("whsec_c2hvcnQ=", {}, "24 to 64 bytes"),
        ("whsec_***", {}, "24 to 64 bytes"),
        (SECRET_LINE.removeprefix("whsec_"), {}, "must hold whsec_"),
        (SECRET_LINE, {"webhook_targets": ("https://example.com",)}, "is not NAME=URL"),
        (SECRET_LINE, {"webhook_targets": ("ops=ftp://example.com",)}, "is not NAME=URL"),
        (SECRET_LINE, {"results": "memory"}, "needs --results FILE"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, secret: str | None, more: dict[str, Any], reason: str) -> None:
    path = tmp_path / "secret"
    if secret is not None:
        path.write_text(secret + "\n")
        more = {**more, "webhook_secret_file": str(path)}
    with pytest.raises(ConfigError, match=reason) as refusal:
        Settings(**{"webhook_targets": (f"ops={URL}",), "results": str(tmp_path / "r.db"), **more})
    assert secret is None or secret.removeprefix("whsec_") not in str(refusal.value)


def test_right_settings_are_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET_LINE)
    settings = Settings(
        webhook_targets=(f"ops={URL}", "dev=http://localhost:1"),
        webhook_secret_file=str(tmp_path / "secret"),
        results=str(tmp_path / "r.db"),
    )
    assert settings.webhooks == WebhookTargets({"ops": URL, "dev": "http://localhost:1"}, SECRET)
    assert "a secret" not in repr(settings.webhooks)
