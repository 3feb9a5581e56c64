"""Standard output and error that are not read, on a full disk, or closed: the server starts, serves and ends."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest
from serving import parse_events

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full and small pipes")

STREAM = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True, "stream": True}


@contextlib.contextmanager
def serving_process(*args, wrapper=(), **streams):
    """Yield the process and its URL once /ready says so."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    command = [sys.executable, "-m", "splitfuse.server", "serve", "--port", str(port), "--num-threads", "1", *args]
    process = subprocess.Popen([*wrapper, *command], **streams)
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 120
        while not is_ready(url):
            assert process.poll() is None, "it ended"
            assert time.monotonic() < until
        yield process, url
    finally:
        process.kill()
        process.communicate()


def is_ready(url):
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(url + "/ready", timeout=60).status_code == 200
    return False


def generate(url):
    """Run a stream with a step per token."""
    events = parse_events(httpx.post(url + "/generate", json=STREAM, timeout=60).text)
    assert (events[-1]["event"], len(events)) == ("done", 201)


def send_what_is_no_request(url):
    with socket.create_connection((httpx.URL(url).host, httpx.URL(url).port), timeout=60) as sock:
        sock.sendall(b"nonsense\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 400")


def test_a_pipe_that_is_not_read():
    import fcntl

    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    try:
        with serving_process("--log-steps", "--debug", stdout=writer, stderr=writer) as (process, url):
            generate(url)
            for _ in range(20):
                send_what_is_no_request(url)
            assert httpx.get(url + "/health", timeout=60).status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        assert len(os.read(reader, 8192)) > 3000, "the pipe was full"
    finally:
        os.close(reader)
        os.close(writer)


def test_a_full_disk_for_the_panel_the_step_lines_and_the_recording():
    """Also: many clients that send nonsense are one line; SIGHUP drains like SIGTERM."""
    with open("/dev/full", "w") as full:
        args = ("--log-steps", "--record", "/dev/full")
        with serving_process(*args, stdout=full, stderr=subprocess.PIPE, text=True) as (process, url):
            generate(url)
            generate(url)
            for _ in range(20):
                send_what_is_no_request(url)
            (dropped,) = [
                float(line.split()[-1])
                for line in httpx.get(url + "/metrics").text.splitlines()
                if line.startswith("splitfuse:log_lines_dropped_total")
            ]
            assert dropped > 400, "the panel and a line for each step"
            process.send_signal(signal.SIGHUP)
            _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0
    lines = stderr.splitlines()
    assert len(lines) == 2, stderr
    assert "--record has stopped" in lines[0]
    assert "No space left on device" in lines[0]
    assert "what a client sent is no HTTP request" in lines[1]


def test_standard_streams_that_are_closed():
    """No connection may get their file descriptors."""
    with serving_process(wrapper=("sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh")) as (process, url):
        generate(url)
        assert {os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in range(3)} == {"/dev/null"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
