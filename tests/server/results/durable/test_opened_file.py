"""The file of an open store: what this process does to it is no alarm, what others do is."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from splitfuse.server.results.durable.opened_file import FileChangedError, OpenedFile
from splitfuse.server.results.durable.records import Changes, Ending, JobRow
from splitfuse.server.results.durable.sqlite_store import SqliteStore
from splitfuse.server.results.durable.store import StoreError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path, is_synced=False)
    yield store
    store.close()


def add(store: SqliteStore, num: int, *, expires: float = 9e9) -> None:
    row = JobRow(num, f"job{num}", "me", 1.0, "x" * 20_000, 1)
    store.commit(Changes(accepted=[row], endings=[Ending(num, "completed", 2.0, expires, "[]")], segment=(num, b"x")))


def test_a_store_that_grows_and_shrinks_is_no_alarm(path: Path, store: SqliteStore) -> None:
    sizes = []
    for num in range(1, 400):
        add(store, num, expires=float(num))
        if num > 200:
            store.sweep(float(num), max_jobs=200)
        store.commit(Changes())
        sizes.append(path.stat().st_size)
    store.commit(Changes(probes=True))
    assert any(after > before for before, after in itertools.pairwise(sizes))
    assert any(after < before for before, after in itertools.pairwise(sizes))


def test_a_failed_write_is_no_alarm(store: SqliteStore) -> None:
    add(store, 1)
    with pytest.raises(StoreError, match="UNIQUE"):
        add(store, 1)
    store.commit(Changes())


@pytest.mark.parametrize("size", [0, 4096])
def test_a_file_that_is_cut_stays_an_alarm(path: Path, store: SqliteStore, size: int) -> None:
    for num in range(1, 300):
        add(store, num)
    os.truncate(path, size)
    for _ in range(3):
        with pytest.raises(StoreError, match="was changed by somebody else"):
            add(store, 1000)
        with pytest.raises(StoreError, match="was changed by somebody else"):
            store.commit(Changes(probes=True))


def test_a_file_that_is_cut_or_moved_during_a_write_is_noticed_after_it(path: Path) -> None:
    path.write_bytes(bytes(9000))
    file = OpenedFile(path, num_bytes=lambda: 8000)
    with file.changing():
        os.truncate(path, 8000)  # pages that are not in use any more
    with file.changing():
        os.truncate(path, 7000)
    with pytest.raises(FileChangedError, match="was changed by somebody else"):
        file.check()
    os.truncate(path, 8000)
    with file.changing():
        path.rename(path.with_name("elsewhere.db"))
    with pytest.raises(FileChangedError, match="was deleted, moved or replaced"):
        file.check()
    path.with_name("elsewhere.db").rename(path)
    file.check()


def test_the_log_beside_a_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "real.db")
    (tmp_path / "real.db").touch()
    store = SqliteStore(tmp_path / "link.db")
    (tmp_path / "real.db-wal").unlink()
    with pytest.raises(StoreError, match=r"real\.db-wal was deleted"):
        store.commit(Changes())
    store.close()
