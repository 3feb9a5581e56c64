"""A message that clients can cause at will stands in the log once a minute, with a count."""

import logging

import pytest

from splitfuse.server.process.log_limit import LOG_INTERVAL_S, LogLimit, limit_log, limit_request_log


def record(message, *args):
    return logging.LogRecord("uvicorn.error", logging.WARNING, "p", 1, message, args, None)


def test_one_line_a_minute_with_the_number_of_those_left_out():
    now = 0.0
    limit = LogLimit("Invalid HTTP", "no HTTP", clock=lambda: now)
    first = record("Invalid HTTP request received.")
    assert limit.filter(first)
    assert first.getMessage() == "no HTTP"
    assert not any(limit.filter(record("Invalid HTTP request received.")) for _ in range(7))
    other = record("%s is something else", "this")
    assert limit.filter(other)
    assert other.getMessage() == "this is something else"
    now = LOG_INTERVAL_S
    second, third = (record("Invalid HTTP request received.") for _ in range(2))
    assert limit.filter(second)
    assert "and 7 more" in second.getMessage()
    assert not limit.filter(third)
    now = 2 * LOG_INTERVAL_S
    fourth = record("Invalid HTTP request received.")
    assert limit.filter(fourth)
    assert "and 1 more" in fourth.getMessage()


@pytest.fixture
def clean_filters():
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio")]
    before = [list(logger.filters) for logger in loggers]
    yield loggers
    for logger, filters in zip(loggers, before, strict=True):
        logger.filters[:] = filters


def test_limits_are_set_once(clean_filters, caplog):
    for logger in clean_filters:
        logger.filters.clear()
    limit_request_log()
    limit_log("asyncio", LogLimit("a message", "other words"))
    num_filters = [len(logger.filters) for logger in clean_filters]
    limit_request_log()
    assert [len(logger.filters) for logger in clean_filters] == num_filters
    with caplog.at_level(logging.WARNING, logger="uvicorn.error"):
        for _ in range(3):
            logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    assert caplog.messages == ["what a client sent is no HTTP request"]
