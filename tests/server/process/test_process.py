"""The life of `splitfuse serve` as its operator sees it: start, signals, exit codes, and what stands on stderr."""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import httpx
from serving import ServerProcess, one_line, parse_events, run_cli

from splitfuse.server.process import start
from splitfuse.server.settings import Settings

LONG = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "temperature": 0}


def first_events(stream, number):
    """Return the raw text of a stream once it holds `number` events."""
    text = ""
    for chunk in stream:
        text += chunk
        if text.count("\n\n") >= number:
            return text
    raise AssertionError(f"the stream ended early: {text}")


def test_sigterm_finishes_what_runs(slow):
    with ServerProcess(program=slow.program) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        url = client.post("/generate", json=LONG).json()["result_url"]
        with client.stream("POST", "/generate", json={**LONG, "stream": True}) as stream:
            chunks = stream.iter_text()
            text = first_events(chunks, 2)
            server.signal()
            while (ready := httpx.get(server.url + "/ready")).status_code == 200:
                pass
            assert ready.json()["error"]["code"] == "draining"
            refused = httpx.post(server.url + "/generate", json=LONG)
            assert (refused.status_code, int(refused.headers["retry-after"]) > 0) == (503, True)
            assert httpx.get(server.url + "/health").status_code == 200
            slow.off()
            events = parse_events(text + "".join(chunks))
        assert events[-1]["event"] == "done"
        assert (events[-1]["data"]["status"], len(events) - 1) == ("completed", 400)
        # The poller has a moment to fetch what has just been finished.
        assert client.get(url + "?wait=60").json()["status"] == "completed"
        code, stderr = server.wait()
    assert code == 0
    assert "Traceback" not in stderr
    assert stderr.startswith("splitfuse: finishing ")


def test_drain_timeout_ends_the_rest(slow):
    with (
        ServerProcess("--drain-timeout", "0.2", program=slow.program) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        with client.stream("POST", "/generate", json={**LONG, "stream": True}) as stream:
            chunks = stream.iter_text()
            text = first_events(chunks, 2)
            server.signal()
            events = parse_events(text + "".join(chunks))
        assert (events[-1]["event"], events[-1]["data"]["status"]) == ("done", "cancelled")
        code, stderr = server.wait()
    assert (code, "Traceback" in stderr) == (0, False)


def test_a_second_signal_ends_at_once(slow):
    long = {**LONG, "stream": True}
    with (
        ServerProcess(program=slow.program) as server,
        httpx.stream("POST", server.url + "/generate", json=long, timeout=60) as stream,
    ):
        chunks = stream.iter_text()  # kept: httpx disconnects when its iterator is collected
        first_events(chunks, 2)
        server.signal(signal.SIGINT)
        while httpx.get(server.url + "/ready").status_code == 200:
            pass
        server.signal()
        code, stderr = server.wait()
    assert code == 128 + signal.SIGTERM, "it did not drain, or this were 0"
    assert "Traceback" not in stderr


def test_an_idle_server_ends_at_once():
    """Not after the time to drain, which is longer than the limit of the wait."""
    with ServerProcess("--log-steps", "--drain-timeout", "1000") as server:
        result = httpx.post(server.url + "/generate", json={"prompt": "Once", "max_tokens": 3, "stream": True})
        assert parse_events(result.text)[-1]["event"] == "done"
        server.signal()
        assert server.process.stdout is not None
        lines = [line for line in server.process.stdout if line.startswith("[Step=")]
        assert server.wait() == (0, "")
    assert lines[0].startswith("[Step=0] prefill_tokens=")
    assert " decode_tokens=" in lines[0]
    for text in ("splitfuse-demo-5m", "bundled demo", "cpu", "blocks =", "requests of 2048", "/v1", "/docs", "curl -N"):
        assert text in server.banner


DYING = """
import sys
from splitfuse.engine.core.engine_core import EngineCore
from splitfuse.server.cli import main

update, num_left = EngineCore.update, 5

def dying_update(self, *args):
    global num_left
    num_left -= 1
    if not num_left:
        raise OverflowError("a bug of the engine")
    return update(self, *args)

EngineCore.update = dying_update
sys.exit(main(sys.argv[4:]))
"""


def test_a_dead_engine_ends_the_server():
    """A supervisor then restarts it; a living process could only refuse."""
    with ServerProcess(wrapper=(sys.executable, "-c", DYING)) as server:
        stream = {**LONG, "stream": True}
        events = parse_events(httpx.post(server.url + "/generate", json=stream, timeout=60).text)
        assert [event["event"] for event in events] == ["token"] * (len(events) - 1) + ["error"]
        assert events[-1]["data"]["error"]["type"] == "server_error"
        code, stderr = server.wait()
    assert code == 1
    assert "OverflowError: a bug of the engine" in stderr
    assert stderr.splitlines()[-1].startswith("splitfuse: error: the engine has died of the error in the log")


def cpu_seconds(pid):
    """Return the CPU seconds of a process so far; 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_ready_within_five_seconds_and_answers_before():
    """Counted in CPU seconds, about 2.5 of them: the wall clock of a busy machine says nothing."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    start = time.monotonic()
    seen: dict[str, float] = {}

    def watch():
        while "ready" not in seen and time.monotonic() - start < 240:
            try:
                response = httpx.get(f"http://127.0.0.1:{port}/ready")
            except httpx.HTTPError:
                continue
            name = "ready" if response.status_code == 200 else response.json()["error"]["code"]
            seen.setdefault(name, time.monotonic() - start)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ServerProcess("--port", str(port)) as server:
        used = cpu_seconds(server.process.pid)
        watcher.join()
    assert list(seen) == ["loading", "ready"]
    assert used < 5


def test_a_server_that_builds_says_how_far_it_is(tmp_path):
    """The compiler waits until the test has asked, then it fails, and the server runs on torch's ops."""
    os.mkfifo(tmp_path / "go")
    compiler = tmp_path / "c++"
    compiler.write_text(f"#!/bin/sh\nread -r line < {tmp_path}/go\nexit 1\n")
    compiler.chmod(0o755)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    environment = {"CXX": str(compiler), "XDG_CACHE_HOME": str(tmp_path), "SPLITFUSE_NATIVE": "build"}
    server = ServerProcess("--port", str(port), env=environment)
    url, reason = f"http://127.0.0.1:{port}", ""
    while "building the CPU library: 0 of " not in reason:
        with contextlib.suppress(httpx.HTTPError):
            answers = [httpx.get(f"{url}/ready"), httpx.post(f"{url}/generate", json=LONG)]
            assert [answer.status_code for answer in answers] == [503, 503]
            reason = answers[1].json()["error"]["message"]
            assert int(answers[1].headers["retry-after"]) > 0
    (tmp_path / "go").write_text("go\n" * 99)
    with server:
        assert httpx.get(f"{url}/ready").status_code == 200
        server.signal()
        code, shown = server.wait()
    assert code == 0
    assert shown.startswith("splitfuse: building the CPU library for this processor, once: ")
    assert "torch ops" in shown


def test_a_signal_while_loading_ends_at_once():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    server = ServerProcess("--port", str(port))
    code = ""
    while code != "loading":
        with contextlib.suppress(httpx.HTTPError):
            response = httpx.get(f"http://127.0.0.1:{port}/ready")
            assert response.status_code == 503
            code = response.json()["error"]["code"]
    server.signal()
    assert server.wait() == (0, "")


def test_port_taken():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        one_line(run_cli("serve", "--port", str(port)), f"port {port}", "in use", "is free: --port ")


def test_a_missing_model_is_named_before_a_taken_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = run_cli("serve", "./nofile.gguf", "--port", str(listener.getsockname()[1]))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "file './nofile.gguf' does not exist" in done.stderr


def test_a_model_that_takes_a_moment_is_said_to_load(tmp_path, monkeypatch, capfd):
    path = tmp_path / "small.gguf"
    path.write_bytes(b"GGUF" + bytes(10**6))
    start.say_loading(Settings(model=str(path)))
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(start, "QUICK_BYTES", 10**5)
    start.say_loading(Settings(model=str(path)))
    start.say_loading(Settings(model="owner/name"))
    assert capfd.readouterr().err == "splitfuse: loading small (1 MB)\n"


def test_bad_host():
    one_line(run_cli("serve", "--host", "no.such.host.invalid"), "no.such.host.invalid")


def test_warning_beyond_loopback():
    with ServerProcess("--host", "0.0.0.0") as server:
        assert httpx.get(server.url + "/ready").status_code == 200
        server.signal()
        code, stderr = server.wait()
    assert code == 0
    assert stderr.startswith("splitfuse: warning: listening on 0.0.0.0 without an API key")


def test_keys_that_can_be_read_or_guessed_are_warned_of(tmp_path):
    path = tmp_path / "keys"
    path.write_text("a-key-of-23-characters-")
    path.chmod(0o644)
    with ServerProcess("--api-key-file", str(path), "--admin-key", "short") as server:
        server.signal()
        code, stderr = server.wait()
    assert code == 0
    assert f"splitfuse: warning: every user can read the keys in {path}: chmod 600 {path}\n" in stderr
    assert "splitfuse: warning: an API key or admin key is shorter than 16 characters" in stderr
    assert "short\n" not in stderr
