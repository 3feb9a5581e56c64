"""Checksums of rows: any change of what they are of is found, also when the row comes back from a store."""

import dataclasses

import pytest

from splitfuse.server.results.durable.batch_rows import BatchRow, FileRow
from splitfuse.server.results.durable.checksum import DamagedError, checksum, is_whole, whole_parts
from splitfuse.server.results.durable.records import Ending, JobRow
from splitfuse.server.results.durable.store import whole_rows

NEW = JobRow(7, "job7", "me", 1.5, "{}", 1, idempotency_key=b"k", body_digest=b"d").summed()
END = Ending(7, "completed", 2.0, 9.0, "[]")
ENDED = dataclasses.replace(NEW, status="completed", finished=2.0, expires=9.0, result="[]", result_sum=END.result_sum)
CHANGES = {
    "num": 8, "seq_id": "job6", "owner": "you", "created": 1.25, "request": "[]", "idempotency_key": None,
    "body_digest": b"e", "row_sum": 1, "request_sum": 1, "status": None, "finished": None, "expires": 9.5,
    "result": "{}", "result_sum": 1, "num_attempts": 2,
}  # fmt: skip


def test_numbers_have_one_checksum_whatever_their_type() -> None:
    assert checksum(1, True, "a", None) == checksum(1.0, 1, "a", None)
    assert checksum("ab", "c") != checksum("a", "bc")
    assert checksum(b"a") != checksum(b"b")
    assert checksum("\udcff") == checksum(b"\xff"), "what is no text has one too"


@pytest.mark.parametrize("name", CHANGES)
def test_a_job_that_was_changed_is_not_whole(name: str) -> None:
    assert NEW.is_whole
    assert ENDED.is_whole
    assert not dataclasses.replace(ENDED, **{name: CHANGES[name]}).is_whole


def test_a_job_that_lost_its_end_is_not_whole() -> None:
    assert not dataclasses.replace(NEW, result_sum=ENDED.result_sum).is_whole


def test_a_job_of_an_earlier_version_is_whole_if_its_texts_are_texts() -> None:
    old = dataclasses.replace(ENDED, row_sum=None, request_sum=None, result_sum=None)
    assert old.is_whole
    assert not dataclasses.replace(old, result="[\udcff]").is_whole
    assert is_whole(None, 1, b"\xff")


def test_files_and_batches_are_checked() -> None:
    file = FileRow("file-1", "me", 1.0, 9.0, "batch", "name", 2, 1).summed()
    batch = BatchRow("batch_1", "me", 1.0, 9.0, "{}").summed()
    assert file.is_whole
    assert batch.is_whole
    assert not dataclasses.replace(file, num_bytes=3).is_whole
    assert not dataclasses.replace(batch, body="[]").is_whole
    assert whole_rows([file, dataclasses.replace(file, owner="you")]) == [file]
    assert dataclasses.replace(file, state="deleted", filename="").is_whole, "its name is gone"


def test_parts_are_checked() -> None:
    part_sum = checksum("file-1", 0, b"ab")
    assert whole_parts("file-1", [(0, b"ab", part_sum), (1, b"old", None)]) == [(0, b"ab"), (1, b"old")]
    for number, body in ((1, b"ab"), (0, b"aB")):
        with pytest.raises(DamagedError):
            whole_parts("file-1", [(number, body, part_sum)])
