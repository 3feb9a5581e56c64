"""LogLimit: logs a message that anybody can cause at will once a minute, with a count."""

import logging
import time
from collections.abc import Callable

LOG_INTERVAL_S = 60.0
# Messages that requests can cause before a key is checked: logger, beginning of the message, text to log instead.
_LIMITED = (
    ("uvicorn.error", "Invalid HTTP request received.", "what a client sent is no HTTP request"),
    ("uvicorn.error", "Unsupported upgrade request.", "a client asked for WebSocket or HTTP/2; this is HTTP/1.1"),
    ("uvicorn.error", "No supported WebSocket library detected.", ""),
    ("asyncio", "socket.send() raised exception.", "an answer was written to a client that had disconnected"),
)


class LogLimit(logging.Filter):
    """Filter that passes one message with this beginning per LOG_INTERVAL_S, reworded, with a count of the others.

    Other messages are unchanged. With an empty rewording it passes none.
    """

    def __init__(self, beginning: str, rewording: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.beginning = beginning
        self._rewording = rewording
        self._clock = clock
        self._silent_until = float("-inf")
        self._num_left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True to log the record, after rewriting it."""
        if not record.getMessage().startswith(self.beginning):
            return True
        now = self._clock()
        if now < self._silent_until or not self._rewording:
            self._num_left_out += 1
            return False
        count_text = f" (and {self._num_left_out} more since the last such line)" if self._num_left_out else ""
        record.msg = self._rewording + count_text
        record.args, record.exc_info, record.exc_text = (), None, None
        self._silent_until, self._num_left_out = now + LOG_INTERVAL_S, 0
        return True


def limit_log(logger_name: str, limit: LogLimit) -> None:
    """Add a limit to a logger. A second limit for the same message changes nothing."""
    logger = logging.getLogger(logger_name)
    if all(getattr(log_filter, "beginning", None) != limit.beginning for log_filter in logger.filters):
        logger.addFilter(limit)


def limit_request_log() -> None:
    """Limit the messages that requests can cause before a key is checked."""
    for logger_name, beginning, rewording in _LIMITED:
        limit_log(logger_name, LogLimit(beginning, rewording))
