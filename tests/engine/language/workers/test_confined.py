"""A worker process reads and computes; it writes, executes and connects nothing."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from splitfuse.engine.language.workers.worker_process import WorkerProcess

# Runs the expression of each job and replies with its value, or with the error's name.
PROGRAM = """
import json, os, socket, subprocess, sys
sys.stdin.readline()
for line in sys.stdin:
    message = json.loads(line)
    try:
        reply = {"value": eval(message["job"])}
    except OSError as exc:
        reply = {"error": type(exc).__name__}
    print(json.dumps({"id": message["id"], **reply}), flush=True)
"""


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    process = WorkerProcess(["-c", PROGRAM], setup="{}")
    yield process
    assert process.current is not None
    process.current.end()


def outcome(worker: WorkerProcess, expression: str) -> object:
    reply = worker.ask(json.dumps(expression))
    return reply.get("value", reply.get("error"))


def test_it_gains_no_privileges(worker: WorkerProcess) -> None:
    status = str(outcome(worker, "open('/proc/self/status').read()"))
    assert "NoNewPrivs:\t1" in status


def test_it_reads_and_forks(worker: WorkerProcess) -> None:
    assert outcome(worker, "os.waitpid(os.fork() or os._exit(0), 0)[1]") == 0


@pytest.mark.parametrize(
    "expression",
    ["open('written', 'w').close()", "os.mkdir('made')", "os.remove('here')", "subprocess.run(['/bin/true'])"],
)
def test_it_changes_no_file_and_executes_none(expression: str, worker: WorkerProcess, tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    if outcome(worker, f"os.chdir({str(tmp_path)!r}) or open('probe', 'w').close()") is None:
        pytest.skip("needs a kernel with Landlock (Linux 5.13)")
    assert outcome(worker, "open('/dev/null', 'w').close()") is None
    assert outcome(worker, expression) == "PermissionError"
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_it_reaches_no_network(worker: WorkerProcess) -> None:
    if outcome(worker, "len(socket.if_nameindex())") != 1:
        pytest.skip("needs a kernel that lets a process have a network namespace of its own")
    assert outcome(worker, "socket.create_connection(('127.0.0.1', 9), timeout=1)") == "OSError"
