"""Signals in processes that run little else: what ends them, when, and with which exit code."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from splitfuse.server.process import last_resort

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs POSIX signals and mutexes that begin as zeros")

# The main thread is for ever in a call that signals do not interrupt: it locks a mutex twice.
BLOCKED = """
import ctypes
from splitfuse.server.process.stop_signals import StopSignals
from splitfuse.server.process.queued_output import queued_output

def wait_for_ever():
    mutex = ctypes.create_string_buffer(256)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)

with queued_output(), StopSignals() as signals:
"""
SERVING = """
    signals.on_stop(lambda: print("stopping", flush=True), limit_s={limit_s})
"""
REST = """
    print("ready", flush=True)
    wait_for_ever()
"""


@contextlib.contextmanager
def running(program, *, wrapper=()):
    """Yield the process, once it has printed "ready"."""
    process = subprocess.Popen(
        [*wrapper, sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, 0), (signal.SIGQUIT, 0)]
)
def test_a_signal_before_there_is_something_to_finish_ends_at_once(number, code):
    with running(BLOCKED + REST) as process:
        process.send_signal(number)
        assert process.wait(60) == code


def test_ctrl_c_ends_a_command_whose_main_thread_is_in_native_code():
    program = BLOCKED.replace("queued_output(), StopSignals() as signals", "StopSignals(signal.SIGINT)")
    with running("import signal" + program + REST) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_that_asks_other_programs_for_new_logs_changes_nothing(number):
    with running(BLOCKED + SERVING.format(limit_s=60) + REST) as process:
        process.send_signal(number)
        process.send_signal(signal.SIGTERM)  # the second, if the first one had been one to stop
        assert process.stdout.readline() == "stopping\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_second_signal_ends_at_once(number):
    with running(BLOCKED + SERVING.format(limit_s=60) + REST) as process:
        process.send_signal(number)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM


def test_what_hangs_ends_at_the_limit_and_its_stack_is_shown():
    with running(BLOCKED + SERVING.format(limit_s=0.3) + REST) as process:
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM
        assert time.monotonic() - start >= 0.3
    assert stderr.startswith("splitfuse: error: the process has not ended within 0.3 s")
    assert "in wait_for_ever" in stderr


FROZEN = """
import os, re, signal, threading
from splitfuse.server.process.stop_signals import StopSignals

with StopSignals() as signals:
    signals.on_stop(lambda: None, limit_s={limit_s})
    os.kill(os.getpid(), signal.SIGUSR1)
    threading.Event().wait(0.2)
    print("ready", flush=True)
    threading.Event().wait({wait_s})
    threading.Thread(target=re.match, args=("(a*)*b", "a" * 60)).start()
    threading.Event().wait()
"""


def helpers_of(process):
    """Return the processes that a process has started."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def is_alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    return False


@pytest.mark.parametrize("wait_s", [0, 1.0], ids=["frozen before the signal", "frozen after it"])
def test_a_call_that_keeps_the_lock_of_the_interpreter_ends_at_the_limit(wait_s):
    with running(FROZEN.format(limit_s=1.5, wait_s=wait_s)) as process:
        (helper,) = helpers_of(process)
        time.sleep(0 if wait_s else 0.5)  # no event can tell: nothing of it runs
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == -signal.SIGKILL
        assert time.monotonic() - start >= 1.5
        wait_until_gone(helper)


def wait_until_gone(pid):
    end = time.monotonic() + 120
    while is_alive(pid):
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_last_resort_ends_with_the_process(number):
    with running(BLOCKED + SERVING.format(limit_s=0.2) + REST) as process:
        (helper,) = helpers_of(process)
        os.kill(helper, signal.SIGTERM)  # as a supervisor would send to all
        process.send_signal(number)
        process.wait(120)
        wait_until_gone(helper)


def test_the_last_resort_is_never_without_its_mask():
    reader, writer = os.pipe()
    with last_resort.start(reader, limit_s=60) as helper:
        status = Path(f"/proc/{helper.pid}/status").read_text()
        blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
        assert blocked & 1 << signal.SIGTERM - 1
        helper.stdin.close()
    os.close(reader)
    os.close(writer)


def test_another_end_is_held_to_the_limit_too():
    ending = REST.replace("wait_for_ever", "signals.hold_to_limit()\n    wait_for_ever")
    with running(BLOCKED + SERVING.format(limit_s=0.1) + ending) as process:
        assert process.wait(60) == 1


def test_nohup_keeps_sighup_ignored():
    with running(BLOCKED + SERVING.format(limit_s=60) + REST, wrapper=("nohup",)) as process:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopping\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)


def test_handlers_are_restored_when_nothing_came():
    from splitfuse.server.process.stop_signals import StopSignals

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    with StopSignals():
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in before} == before
    assert signal.set_wakeup_fd(-1) == -1
