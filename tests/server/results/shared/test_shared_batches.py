"""Batches of servers that share a database, within one process: what one does that loses a batch, or gains one."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

psycopg = pytest.importorskip("psycopg", reason="needs psycopg: pip install 'psycopg[binary]'")

from postgres_server import PostgresServer  # noqa: E402

from splitfuse.engine.errors import InvalidRequestError, QueueFullError  # noqa: E402
from splitfuse.server.http.errors import HeldElsewhereError, MovedError, StoreUnavailableError  # noqa: E402
from splitfuse.server.results.batches import batches as batches_module  # noqa: E402
from splitfuse.server.results.batches.batch import Batch, NewBatch  # noqa: E402
from splitfuse.server.results.durable.batch_rows import BatchChanges  # noqa: E402
from splitfuse.server.results.durable.store import StoreError  # noqa: E402
from splitfuse.server.results.shared.postgres_store import PostgresStore  # noqa: E402
from splitfuse.server.results.shared.shared_batches import SharedBatches  # noqa: E402
from splitfuse.server.settings import Settings  # noqa: E402

NUM_LINES = 8


class Server:
    """Server without an engine: an answer comes when `answers` is set."""

    def __init__(self, database: str, url: str) -> None:
        self.database, self.url = database, url
        self.store = self.opened()
        self.answers = asyncio.Event()
        self.is_ready = True
        self.num_asked = 0
        self._lock = asyncio.Lock()
        settings = Settings(results=database, results_lease=1.0)
        self.batches = SharedBatches(
            self,  # type: ignore[arg-type]  # it is used as a StoreUser only
            settings,
            self.answer,
            clock=lambda: 1000.0,
            may_claim=lambda: self.is_ready,
        )

    def opened(self) -> PostgresStore:
        return PostgresStore(self.database, url=self.url, model="m", lease_s=60)

    async def use(self, function: Callable[[PostgresStore], Any]) -> Any:
        async with self._lock:
            try:
                return await asyncio.to_thread(function, self.store)
            except StoreError as exc:
                raise StoreUnavailableError(str(exc)) from exc

    async def answer(self, batch: Batch, fields: Mapping[str, Any]) -> Any:
        self.num_asked += 1
        await self.answers.wait()
        return {"by": self.url}

    async def lose_lease(self, *, to: "Server") -> None:
        """Let another server give this one up; this one then has a new number."""
        async with self._lock:
            with psycopg.connect(self.database, autocommit=True) as db:
                db.execute(f"UPDATE splitfuse_holders SET expires = now() WHERE num = {self.store.holder.num}")
            assert await to.use(lambda store: store.beat())
            self.store.close()
            self.store = self.opened()

    async def begin(self) -> Batch:
        lines = [{"custom_id": str(i), "method": "POST", "url": "/generate", "body": {}} for i in range(NUM_LINES)]
        file = await self.batches.files.add(
            io.BytesIO("\n".join(map(json.dumps, lines)).encode()), owner="me", filename="f"
        )
        return await self.create(file.file_id)

    async def create(self, file_id: str) -> Batch:
        asked = NewBatch(
            endpoint="/generate",
            input_file_id=file_id,
            completion_window="1h",
            window_s=3600.0,
            metadata=None,
            files_expire_after=3600.0,
        )
        return await self.batches.create(asked, owner="me", key=None)

    async def until(self, batch: Batch, condition: Callable[[Batch], bool]) -> Batch:
        async with asyncio.timeout(60):
            while not condition(batch):
                await asyncio.sleep(0.01)  # a batch can only be polled
                batch = await self.batches.find(batch.batch_id, owner="me")
            return batch

    async def ended(self, batch: Batch) -> tuple[Batch, list[str]]:
        """Return the batch when it is over, and by whom its lines were answered."""
        done = await self.until(batch, lambda batch: batch.is_over)
        pieces = [piece async for piece in self.batches.files.contents(done.output_file_id or "")]
        return done, [json.loads(line)["response"]["body"]["by"] for line in b"".join(pieces).splitlines()]


@pytest.fixture
async def pair(postgres: PostgresServer) -> AsyncIterator[tuple[Server, Server]]:
    database = postgres.database()
    servers = Server(database, "http://one"), Server(database, "http://two")
    yield servers
    for server in servers:
        await server.batches.stop()
        server.store.close()


async def test_a_server_that_lost_a_batch_runs_it_no_longer(pair: tuple[Server, Server]) -> None:
    one, two = pair
    batch = await one.begin()
    await one.until(batch, lambda _: one.num_asked == NUM_LINES)
    await one.lose_lease(to=two)
    one.answers.set()  # its writes from now on are late
    await asyncio.sleep(0.1)
    two.answers.set()
    await two.batches.resume()
    done, answered_by = await two.ended(batch)
    assert (done.status, answered_by) == ("completed", ["http://two"] * NUM_LINES)
    await one.batches.resume()
    await one.until(batch, lambda _: not one.batches._runs)
    assert (await two.ended(batch)) == (done, answered_by)


async def test_a_server_takes_up_again_what_it_lost_itself(pair: tuple[Server, Server]) -> None:
    one, two = pair
    batch = await one.begin()
    await one.until(batch, lambda _: one.num_asked == NUM_LINES)
    await one.lose_lease(to=two)
    await one.batches.resume()
    await one.until(batch, lambda _: one.num_asked == 2 * NUM_LINES)
    one.answers.set()
    done, answered_by = await one.ended(batch)
    assert (done.completed, answered_by) == (NUM_LINES, ["http://one"] * NUM_LINES)


async def test_one_that_stops_leaves_its_batches_to_others(pair: tuple[Server, Server]) -> None:
    one, two = pair
    batch = await one.begin()
    await one.until(batch, lambda _: one.num_asked == NUM_LINES)
    await one.batches.stop()
    two.answers.set()
    two.is_ready = False
    await two.batches.resume()
    with pytest.raises(MovedError):
        await two.batches.cancel(batch.batch_id, owner="me")
    two.is_ready = True
    done, _ = await two.ended(batch)
    assert (done.status, done.completed) == ("completed", NUM_LINES)


async def test_the_holder_is_asked_to_cancel(pair: tuple[Server, Server]) -> None:
    one, two = pair
    batch = await one.begin()
    await one.until(batch, lambda batch: batch.status == "in_progress")
    with pytest.raises(HeldElsewhereError) as held:
        await two.batches.cancel(batch.batch_id, owner="me")
    assert (held.value.url, await held.value.is_held()) == ("http://one", True)
    assert (await one.batches.cancel(batch.batch_id, owner="me")).status in ("cancelling", "cancelled")
    done, _ = await two.ended(batch)
    assert (done.status, done.failed) == ("cancelled", NUM_LINES)


async def test_what_is_held_without_a_run_begins(pair: tuple[Server, Server]) -> None:
    """The connection breaks at the commit, and the client sees a failure."""
    one, _ = pair
    batch = await one.begin()
    await one.batches._drop([batch.batch_id])
    one.answers.set()
    await one.batches.resume()
    assert (await one.ended(batch))[0].completed == NUM_LINES


async def test_a_file_is_not_deleted_while_any_server_reads_it(pair: tuple[Server, Server]) -> None:
    one, two = pair
    batch = await one.begin()
    with pytest.raises(InvalidRequestError, match=f"{batch.batch_id} reads this file"):
        await two.batches.delete_file(batch.input_file_id, owner="me")
    file = await one.batches.files.add(io.BytesIO(b"{}"), owner="me", filename="f")
    creating = (server.create(file.file_id) for server in (one, two, one, two))
    deleting = (server.batches.delete_file(file.file_id, owner="me") for server in (two, one))
    ends = await asyncio.gather(*creating, *deleting, return_exceptions=True)
    assert {type(end) for end in ends} <= {Batch, InvalidRequestError, type(None)}
    found = await one.use(lambda store: store.find_file(file.file_id))
    has_batch = any(isinstance(end, Batch) for end in ends)
    assert found.state == ("ready" if has_batch else "deleted"), "a batch has its file"


async def test_unfinished_batches_of_all_servers_count(
    pair: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    monkeypatch.setattr(batches_module, "MAX_UNFINISHED", 2)
    batch = await one.begin()
    await two.begin()
    for server in pair:
        with pytest.raises(QueueFullError, match="2 of your batches are unfinished"):
            await server.create(batch.input_file_id)


async def test_an_upload_that_another_server_has_given_up_fails(pair: tuple[Server, Server]) -> None:
    one, two = pair
    write, loop, has_begun = one.store.write_batches, asyncio.get_running_loop(), asyncio.Event()

    def write_and_say(changes: BatchChanges) -> None:
        write(changes)
        if changes.parts:
            loop.call_soon_threadsafe(has_begun.set)

    one.store.write_batches = write_and_say  # type: ignore[method-assign]
    adding = asyncio.create_task(one.batches.files.add(io.BytesIO(b"x\n" * 2**21), owner="me", filename="f"))
    await has_begun.wait()
    await one.lose_lease(to=two)
    with pytest.raises(StoreUnavailableError, match="cut short"):
        await adding
    for _ in range(9):
        await two.use(lambda store: store.sweep(1000.0, max_jobs=1))
    with contextlib.closing(psycopg.connect(one.database)) as db:
        assert db.execute("SELECT count(*) FROM splitfuse_file_parts").fetchone() == (0,)
