"""Report of the CPU library's build on standard error. The library itself prints nothing: it logs."""

import logging
import sys
import time

from .log_format import as_line

_LOGGER = "splitfuse.kernels.build"
_PAUSE_S = 5.0  # between lines of progress, where lines stay


class BuildReport(logging.Handler):
    """Handler of the build's log: lines at its begin and end, and the files so far: a line on a terminal, else some."""

    _last_s = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record."""
        text, is_terminal = record.getMessage(), sys.stderr.isatty()
        if record.levelno > logging.DEBUG:
            print(("\r" if is_terminal else "") + as_line(f"splitfuse: {text}"), file=sys.stderr, flush=True)
        elif is_terminal:
            print(f"\rsplitfuse: {text}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() >= self._last_s + _PAUSE_S:
            print(as_line(f"splitfuse: {text}"), file=sys.stderr, flush=True)
        else:
            return
        self._last_s = time.monotonic()


def report_builds() -> None:
    """Show builds from now on."""
    logger = logging.getLogger(_LOGGER)
    if not any(isinstance(handler, BuildReport) for handler in logger.handlers):
        logger.addHandler(BuildReport())
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
