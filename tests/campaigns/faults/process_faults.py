"""Faults around the process: signals, descriptors, disks, pipes, changed files, damaged caches."""

import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from faults.fault import Fault, Seen, complete, crowd
from served import Served

import splitfuse.engine

DEMO = Path(splitfuse.engine.__file__).parent / "demo_model"
HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def copied_model(folder: str) -> Path:
    """Copy the demo model into a folder of its own."""
    target = Path(folder, "model")
    shutil.copytree(DEMO, target, ignore=shutil.ignore_patterns("draft"))
    return target


def no_descriptors() -> Seen:
    limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (256, 256))
    grammar: dict[str, Any] = {"structured_outputs": {"regex": "[a-z]+"}}
    with Served(prepare=limit) as served:
        with served.client() as kept:
            kept.get("/health")
            with crowd(served, HEALTH, 300):
                time.sleep(1)
                without = complete(kept, **grammar).status_code
        time.sleep(2)
        with served.client() as client:
            after = [complete(client, **grammar).status_code for _ in range(3)]
    return Seen(without in (200, 503) and after == [200] * 3, f"{without} without descriptors, {after} afterwards")


def blocked_stderr() -> Seen:
    reading, writing = os.pipe()
    try:
        with Served("--drain-timeout", "1", stderr=writing) as served:
            for _ in range(1500):
                with closing(served.connect(timeout=4)) as connection:
                    connection.sendall(b"bad\r\n\r\n")
                    connection.recv(100)
            health = served.status("/health")
            served.signal(signal.SIGTERM)
            code = served.wait(10)
    finally:
        os.close(reading)
        os.close(writing)
    return Seen((health, code) == (200, 0), f"/health {health}, exit {code} on SIGTERM")


def full_disk() -> Seen:
    with Served("--record", "/dev/full") as served, served.client() as client:
        statuses = [complete(client, max_tokens=200, ignore_eos=True).status_code for _ in range(4)]
        health = served.status("/health")
        return Seen((set(statuses), health) == ({200}, 200), f"{statuses}, /health {health}")


def full_stdout() -> Seen:
    with Served(stdout="/dev/full") as served:
        return Seen(served.status("/ready") == 200, f"/ready {served.status('/ready')}")


def model_file(change: str) -> Seen:
    """Change a model file; `change`: a shell command on the file $F."""
    with tempfile.TemporaryDirectory() as folder:
        model = copied_model(folder)
        with Served(str(model)) as served, served.client(timeout=20) as client:
            before = complete(client, max_tokens=20, temperature=0).json()["choices"][0]["text"]
            file = model / "model.safetensors"
            subprocess.run(["sh", "-c", change], env={**os.environ, "F": str(file)}, check=True)
            told = []
            for _ in range(3):
                try:
                    answer = complete(client, max_tokens=20, temperature=0)
                    told.append(answer.json()["choices"][0]["text"] == before if answer.status_code == 200 else None)
                except Exception:
                    break
            code, health = served.wait(1), served.status("/health")
    is_right = told == [True] * 3 and health == 200
    return Seen(code is None and (is_right or health == 503), f"right answers: {told}, exit {code}, /health {health}")


def damaged_library(content: str) -> Seen:
    """Damage the cached library; `content`: half of the library, or another one."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    found = sorted(cache.glob("splitfuse/native/**/*.so"))
    if not found:
        return Seen(False, "no library has been built on this machine")
    with tempfile.TemporaryDirectory() as folder:
        for library in found:
            target = Path(folder) / library.relative_to(cache)
            target.parent.mkdir(parents=True, exist_ok=True)
            data = library.read_bytes()
            if content == "half":
                target.write_bytes(data[: len(data) // 2])
            else:
                source = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(target)]
                subprocess.run(source, input=b"int x() { return 1; }", check=True)
            for beside in library.parent.glob(library.name + ".*"):
                shutil.copy(beside, target.parent)
        served = Served("--dtype", "float32", env={"XDG_CACHE_HOME": folder})
        try:
            served.until_ready(seconds=240)
            with served.client() as client:
                status = complete(client).status_code
            return Seen(status == 200, f"ready, {status}")
        except RuntimeError:
            return Seen(False, f"exit {served.process.poll()}")
        finally:
            served.__exit__(None, None, None)


def killed() -> Seen:
    with tempfile.TemporaryDirectory() as folder:
        store = ("--results", f"{folder}/results.db")
        with Served(*store) as served, served.client() as client:
            body = {"prompt": "Once", "max_tokens": 5, "seed": 1}
            url = client.post("/generate", json=body).json()["result_url"]
            text = client.get(url + "?wait=60").json()["text"]
            unfinished = client.post("/generate", json={**body, "max_tokens": 800, "ignore_eos": True}).json()[
                "result_url"
            ]
            served.signal(signal.SIGKILL)
            served.wait(10)
        with Served(*store) as served, served.client(timeout=90) as client:
            kept = client.get(url).json()
            again = client.get(unfinished + "?wait=60").json()
    holds = kept.get("text") == text and again.get("status") == "completed"
    return Seen(holds, f"the finished one: {kept.get('status')}, the other: {again.get('status')}")


def hang_up() -> Seen:
    with Served() as served, served.client() as client:
        url = client.post("/generate", json={"prompt": "Once", "max_tokens": 400, "ignore_eos": True}).json()[
            "result_url"
        ]
        served.signal(signal.SIGHUP)
        try:
            status = client.get(url + "?wait=60").json()["status"]
        except Exception as exc:
            status = type(exc).__name__
        code = served.wait(40)
    return Seen((status, code) == ("completed", 0), f"{status}, exit {code}")


def early_sigterm() -> Seen:
    codes = []
    for delay in (0.05, 0.15, 0.3, 0.6):
        served = Served()
        time.sleep(delay)
        served.signal(signal.SIGTERM)
        codes.append(served.wait(30))
        served.__exit__(None, None, None)
    # At the first of these moments Python may not have begun to run our code.
    return Seen({*codes} <= {0, -signal.SIGTERM} and codes[-1] == 0, f"exit codes {codes}")


FAULTS = (
    Fault("R3", "no descriptor is left for the grammar process", "503, and grammars work afterwards", no_descriptors),
    Fault("R4", "stderr is a full pipe", "it answers, and ends on SIGTERM", blocked_stderr),
    Fault("R5", "--record on a full disk", "requests go on", full_disk),
    Fault(
        "R7", "the model file is replaced", "right answers",
        partial(model_file, 'cp "$F" "$F.new"; mv "$F.new" "$F"'),
    ),
    Fault(
        "R7", "the model file is cut", "right answers, or /health 503",
        partial(model_file, 'truncate -s 1000 "$F"'),
    ),
    Fault(
        "R9", "the model file is overwritten", "right answers, or /health 503",
        partial(model_file, 'dd if=/dev/urandom of="$F" bs=1M count=9 conv=notrunc status=none'),
    ),
    Fault("R8", "half of the native library in the cache", "it starts and answers", partial(damaged_library, "half")),
    Fault("R8", "another library in the cache", "it starts and answers", partial(damaged_library, "another")),
    Fault("R11", "SIGKILL with --results FILE", "results are kept, the others completed", killed),
    Fault("R19", "SIGHUP", "it finishes what runs, exit 0", hang_up),
    Fault("R19", "SIGTERM in the first half second", "it ends, by the signal or with exit 0", early_sigterm),
    Fault("R19", "stdout on a full disk", "it starts", full_stdout),
)  # fmt: skip
