"""Out of file descriptors: the soft limit is raised, and EMFILE is logged once and not by the megabyte."""

import contextlib
import logging
import socket
import sys
import time

import httpx
import pytest
from serving import ServerProcess

from splitfuse.server.process.file_limits import EmfileFilter
from splitfuse.server.process.log_limit import LOG_INTERVAL_S


def record(message, *args):
    return logging.LogRecord("asyncio", logging.ERROR, "p", 1, message, args, (OSError, OSError(24, "x"), None))


def test_one_line_a_minute():
    now = 0.0
    emfile = EmfileFilter(clock=lambda: now)
    first = record("socket.accept() out of system resource\nsocket: %s", "s")
    assert emfile.filter(first)
    assert first.exc_info is None
    assert "ulimit -n" in first.getMessage()
    assert not emfile.filter(record("socket.accept() out of system resource"))
    other = record("Task was destroyed but it is pending!")
    assert emfile.filter(other)
    assert other.exc_info is not None
    assert not emfile.filter(record("Exception in callback BaseSelectorEventLoop._start_serving(<f>, <socket>)"))
    now = LOG_INTERVAL_S
    assert emfile.filter(record("socket.accept() out of system resource"))


@pytest.mark.skipif(sys.platform == "win32", reason="no such limits")
def test_a_server_out_of_file_descriptors():
    limited = ("sh", "-c", 'ulimit -Sn 64 && ulimit -Hn 96 && exec "$@"', "sh")
    with ServerProcess(wrapper=limited) as server, contextlib.ExitStack() as sockets:
        if sys.platform == "linux":
            with open(f"/proc/{server.process.pid}/limits") as limits:
                (line,) = [line for line in limits if line.startswith("Max open files")]
            assert line.split()[3:5] == ["96", "96"]
        url = httpx.URL(server.url)
        for _ in range(150):
            sockets.enter_context(socket.create_connection((url.host, url.port), timeout=60))
        time.sleep(3)  # asyncio tries again every second
        sockets.close()
        assert httpx.get(server.url + "/health", timeout=60).status_code == 200
        server.signal()
        code, stderr = server.wait()
    assert code == 0
    assert stderr.count("no file descriptor is left") == 1
    assert "Traceback" not in stderr, stderr[:1500]
    assert len(stderr.splitlines()) == 1
