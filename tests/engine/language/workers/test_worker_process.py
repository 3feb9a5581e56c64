"""A worker process may take long to start, on a busy machine, and may not fall silent afterwards."""

import pytest

from splitfuse.engine.language.workers import worker_process
from splitfuse.engine.language.workers.worker_process import WorkerEndedError, WorkerProcess

# Replies to the first job late, and to no other.
PROGRAM = """
import json, sys, time
time.sleep(0.5)
sys.stdin.readline()
print(json.dumps({"id": json.loads(sys.stdin.readline())["id"]}), flush=True)
sys.stdin.read()
"""


def test_only_the_first_answer_may_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_SILENCE_S", 0.1)
    worker = WorkerProcess(["-c", PROGRAM], setup="{}")
    assert worker.ask('"first"')["id"] == 1
    with pytest.raises(WorkerEndedError):
        worker.ask('"second"')
