"""File descriptors: each connection takes one, and the usual soft limit of 1024 is less than a server can carry.

When they run out asyncio logs a traceback per connection that waits, about 1000 times a second; here that is one line a
minute.
"""

import contextlib
import logging
import time
from collections.abc import Callable

SILENCE_S = 60.0
_RAN_OUT = "socket.accept() out of system resource"
# Each of those is tried again a second later, also if the server has closed by then, and fails on the closed socket.
_TRIED_AGAIN_TOO_LATE = "Exception in callback BaseSelectorEventLoop._start_serving("


def take_all_that_the_system_gives() -> None:
    """Raise the soft limit to the hard one, where the system has such limits and allows it."""
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS takes no "unlimited"
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def say_rarely_that_they_ran_out() -> None:
    """Filter asyncio's log. A second call changes nothing."""
    logger = logging.getLogger("asyncio")
    if not any(isinstance(one, OutOfFiles) for one in logger.filters):
        logger.addFilter(OutOfFiles())


class OutOfFiles(logging.Filter):
    """Lets one message in SILENCE_S through, in our words; other messages pass untouched."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._silent_until = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged; rewrites it if so."""
        text = record.getMessage()
        if not text.startswith(_RAN_OUT):
            return not text.startswith(_TRIED_AGAIN_TOO_LATE)
        now = self._clock()
        if now < self._silent_until:
            return False
        self._silent_until = now + SILENCE_S
        record.msg = "new connections wait: no file descriptor is left; raise the limit (ulimit -n)"
        record.args, record.exc_info, record.exc_text = (), None, None
        return True
