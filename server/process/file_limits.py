"""Limit of file descriptors: each connection takes one, and the usual soft limit of 1024 is less than a server can use.

When descriptors run out (EMFILE), asyncio logs a traceback for each waiting connection, about 1000 a second. Here that
becomes one line a minute.
"""

import contextlib
import logging
import time
from collections.abc import Callable

from .log_limit import LogLimit, limit_log

_EMFILE = "socket.accept() out of system resource"
# asyncio retries each accept a second later, which fails if the server has closed the socket by then.
_LATE_RETRY = "Exception in callback BaseSelectorEventLoop._start_serving("


def raise_file_limit() -> None:
    """Raise the soft limit to the hard one, if the system has such limits and allows it."""
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS refuses "unlimited"
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def rate_limit_emfile_log() -> None:
    """Filter asyncio's log. A second call changes nothing."""
    limit_log("asyncio", EmfileFilter())


class EmfileFilter(LogLimit):
    """Filter that passes one EMFILE message per LOG_INTERVAL_S, reworded. Other messages are unchanged."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(
            _EMFILE, "new connections wait: no file descriptor is left; raise the limit (ulimit -n)", clock
        )

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True to log the record, after rewriting it."""
        return not record.getMessage().startswith(_LATE_RETRY) and super().filter(record)
