"""Report of the CPU library's build on standard error. The library itself prints nothing: it logs."""

import logging
import sys

from .log_format import as_line

_LOGGER = "splitfuse.kernels.build"


class BuildReport(logging.Handler):
    """Handler of the build's log: a line at its begin and end, and on a terminal the number of files so far."""

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record."""
        text, is_terminal = record.getMessage(), sys.stderr.isatty()
        if record.levelno > logging.DEBUG:
            print(("\r" if is_terminal else "") + as_line(f"splitfuse: {text}"), file=sys.stderr, flush=True)
        elif is_terminal:
            print(f"\rsplitfuse: {text}", end="", file=sys.stderr, flush=True)


def report_builds() -> None:
    """Show builds from now on."""
    logger = logging.getLogger(_LOGGER)
    if not any(isinstance(handler, BuildReport) for handler in logger.handlers):
        logger.addHandler(BuildReport())
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
