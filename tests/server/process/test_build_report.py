"""The report of a build: lines where it is a file or a pipe, a count of files on a terminal."""

import io
import logging

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
    logger.info("building, about %d s", 20)
    logger.debug("%d of %d files", 3, 9)
    logger.info("built in %.1f s", 16.3)
    return stream.getvalue()


def test_a_file_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown_on(io.StringIO(), monkeypatch) == "splitfuse: building, about 20 s\nsplitfuse: built in 16.3 s\n"


def test_a_terminal_gets_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "\rsplitfuse: building, about 20 s\n\rsplitfuse: 3 of 9 files\rsplitfuse: built in 16.3 s\n"
    assert shown_on(Terminal(), monkeypatch) == shown
