"""Hangs planted into a real server: a step that never ends, an event loop that is blocked. The process must end."""

import contextlib
import signal
import sys
import threading
import time

import httpx
import pytest
from serving import ServerProcess
from shared_cores import CpuWait

from splitfuse.server.process.exit import END_S

# A prompt that begins with token 7 hangs the step, one with 8 the event loop, one with 9 every thread.
HANGING = """
import os, re, sys, threading
from splitfuse.engine.core.engine_core import EngineCore
from splitfuse.engine.execution.runner.model_runner import ModelRunner
from splitfuse.server.cli import main

run, add = ModelRunner.run, EngineCore.add

def hung_run(self, batch):
    if any(row.request.token_ids[0] == 7 for row in batch.rows):
        threading.Event().wait()
    if any(row.request.token_ids[0] == 9 for row in batch.rows):
        os.write(1, b"frozen\\n")
        re.match("(a*)*b", "a" * 60)
    return run(self, batch)

def hung_add(self, requests, **options):
    if requests[0].token_ids[0] == 8:
        threading.Event().wait()
    return add(self, requests, **options)

ModelRunner.run, EngineCore.add = hung_run, hung_add
sys.exit(main(sys.argv[4:]))
"""
WRAPPER = (sys.executable, "-c", HANGING)


def hang(server, token_id):
    """Submit the prompt; the answer does not always come before the process ends."""
    with contextlib.suppress(httpx.TransportError):
        httpx.post(server.url + "/generate", json={"prompt": [token_id, 20]}, timeout=60)


@pytest.mark.parametrize(
    ("token_id", "reason", "function"),
    [(7, "no step has ended for 1 s", "hung_run"), (8, "the event loop has been blocked for 1 s", "hung_add")],
)
def test_the_watchdog_ends_the_process_and_shows_where_it_hangs(token_id, reason, function):
    with ServerProcess("--step-timeout", "1", wrapper=WRAPPER) as server:
        hang(server, token_id)
        code, stderr = server.wait()
    assert code == 3
    assert stderr.count(reason) == 1
    assert f"in {function}" in stderr


def test_sigterm_ends_a_server_none_of_whose_threads_can_run():
    with ServerProcess("--drain-timeout", "0.2", wrapper=WRAPPER) as server, CpuWait() as wait:
        threading.Thread(target=hang, args=(server, 9), daemon=True).start()
        assert server.process.stdout is not None
        assert any("frozen" in line for line in server.process.stdout)
        start = time.monotonic()
        server.signal()
        code, _ = server.wait()
        assert time.monotonic() - start < (0.2 + END_S + 1) * wait.factor
    assert code == -signal.SIGKILL


def test_sigterm_ends_a_hung_server_within_the_limit_and_not_with_0():
    with ServerProcess("--drain-timeout", "0.2", wrapper=WRAPPER) as server, CpuWait() as wait:
        hang(server, 7)
        start = time.monotonic()
        server.signal()
        code, stderr = server.wait()
        assert time.monotonic() - start < (0.2 + END_S + 5) * wait.factor
    assert code == 128 + signal.SIGTERM
    assert "in hung_run" in stderr
