"""The report of a build: some lines where it is a file or a pipe, one line that changes on a terminal."""

import io
import logging
import time

import pytest

from splitfuse.server.process.build_report import BuildReport, report_builds


class Terminal(io.StringIO):
    """Text stream that claims to be a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def shown_on(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    report_builds()
    report_builds()
    logger = logging.getLogger("splitfuse.kernels.build")
    assert sum(isinstance(handler, BuildReport) for handler in logger.handlers) == 1
    monkeypatch.setattr("sys.stderr", stream)
    logger.info("building %d files", 9)
    now = time.monotonic()
    for num in range(3):
        monkeypatch.setattr(time, "monotonic", lambda num=num: now + 4 * num)
        logger.debug("%d of %d files", num, 9)
    logger.info("built in %.1f s", 16.3)
    return stream.getvalue()


def test_a_file_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["building 9 files", "2 of 9 files", "built in 16.3 s"]  # the last is 8 s after the first
    assert shown_on(io.StringIO(), monkeypatch) == "".join(f"splitfuse: {line}\n" for line in lines)


def test_a_terminal_gets_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    files = "".join(f"\rsplitfuse: {num} of 9 files" for num in range(3))
    shown = f"\rsplitfuse: building 9 files\n{files}\rsplitfuse: built in 16.3 s\n"
    assert shown_on(Terminal(), monkeypatch) == shown
