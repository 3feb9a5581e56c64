"""Format of the log and of the output of `serve`: text for people, or with --log-format json objects for programs."""

import json
import logging
import sys
import time
from collections.abc import Mapping

LOGGER = "splitfuse.requests"  # logger of one line per request
MAX_LINE_CHARS = 2000


class JsonFormatter(logging.Formatter):
    """Formatter of one object per line: time (UTC), level, logger, message, and the message's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Build the line."""
        fields = {
            "time": _utc(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


class _RequestFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{_utc(record)} {record.getMessage()}"


def set_up_logging(log_format: str) -> None:
    """Make all loggers write this format to standard error, and requests to standard output."""
    requests = logging.getLogger(LOGGER)
    requests.handlers = [logging.StreamHandler(sys.stdout)]
    requests.setLevel(logging.INFO)
    requests.propagate = False
    requests.handlers[0].setFormatter(JsonFormatter() if log_format == "json" else _RequestFormatter())
    if log_format == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())


def as_line(text: str, *, level: int = logging.INFO, fields: Mapping[str, str] | None = None) -> str:
    """Format text that is printed beside the log like the log itself.

    `fields`: what the text's lines after the first say, for programs.
    """
    formatters = (handler.formatter for handler in logging.getLogger().handlers)
    json_formatter = next((formatter for formatter in formatters if isinstance(formatter, JsonFormatter)), None)
    if json_formatter is None:
        return text
    message = text if fields is None else text.partition("\n")[0]
    named = {name.lower().replace(" ", "_"): value for name, value in (fields or {}).items()}
    about = {"name": "splitfuse", "levelname": logging.getLevelName(level), "msg": message, "fields": named}
    return json_formatter.format(logging.makeLogRecord(about))


def one_line(text: str) -> str:
    """Return text as one printable line. The middle of a long text is left out: it may hold a damaged file's values."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    half = MAX_LINE_CHARS // 2
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:half]} … {line[-half:]}"


def _utc(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"
