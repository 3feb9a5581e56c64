"""The life of `splitfuse serve` as its operator sees it: start, signals, exit codes, and what stands on stderr."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from serving import ServerProcess, one_line, parse_events, run_cli

from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.kernels.cpu import build as kernels_native
from splitfuse.server.cli import main
from splitfuse.server.process.banner import curl
from splitfuse.server.settings import Settings

LONG = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "temperature": 0}


def first_events(stream, number):
    """The raw text of a stream once it holds so many events."""
    text = ""
    for piece in stream:
        text += piece
        if text.count("\n\n") >= number:
            return text
    raise AssertionError(f"the stream ended early: {text}")


def test_sigterm_finishes_what_runs():
    with ServerProcess() as server, httpx.Client(base_url=server.url, timeout=60) as client:
        url = client.post("/generate", json=LONG).json()["result_url"]
        with client.stream("POST", "/generate", json={**LONG, "stream": True}) as stream:
            pieces = stream.iter_text()
            text = first_events(pieces, 2)
            server.signal()
            while (ready := httpx.get(server.url + "/ready")).status_code == 200:
                pass
            assert ready.json()["error"]["code"] == "draining"
            refused = httpx.post(server.url + "/generate", json=LONG)
            assert (refused.status_code, int(refused.headers["retry-after"]) > 0) == (503, True)
            assert httpx.get(server.url + "/health").status_code == 200
            events = parse_events(text + "".join(pieces))
        assert events[-1]["event"] == "done"
        assert (events[-1]["data"]["status"], len(events) - 1) == ("completed", 400)
        # The poller has a moment to fetch what has just been finished.
        assert client.get(url + "?wait=60").json()["status"] == "completed"
        code, stderr = server.wait()
    assert code == 0
    assert "Traceback" not in stderr
    assert stderr.startswith("splitfuse: finishing ")


def test_drain_timeout_ends_the_rest():
    with ServerProcess("--drain-timeout", "0.2") as server, httpx.Client(base_url=server.url, timeout=60) as client:
        with client.stream("POST", "/generate", json={**LONG, "max_tokens": 2000, "stream": True}) as stream:
            pieces = stream.iter_text()
            text = first_events(pieces, 2)
            server.signal()
            events = parse_events(text + "".join(pieces))
        assert (events[-1]["event"], events[-1]["data"]["status"]) == ("done", "cancelled")
        code, stderr = server.wait()
    assert (code, "Traceback" in stderr) == (0, False)


def test_a_second_signal_ends_at_once():
    long = {**LONG, "max_tokens": 2000, "stream": True}
    with ServerProcess() as server, httpx.stream("POST", server.url + "/generate", json=long, timeout=60) as stream:
        pieces = stream.iter_text()  # kept: httpx hangs up when its iterator is collected
        first_events(pieces, 2)
        server.signal(signal.SIGINT)
        while httpx.get(server.url + "/ready").status_code == 200:
            pass
        start = time.monotonic()
        server.signal()
        code, stderr = server.wait()
    assert code == 128 + signal.SIGTERM
    assert time.monotonic() - start < 5
    assert "Traceback" not in stderr


def test_an_idle_server_ends_at_once():
    with ServerProcess("--log-steps") as server:
        result = httpx.post(server.url + "/generate", json={"prompt": "Once", "max_tokens": 3, "stream": True})
        assert parse_events(result.text)[-1]["event"] == "done"
        start = time.monotonic()
        server.signal()
        assert server.process.stdout is not None
        lines = [line for line in server.process.stdout if line.startswith("[Step=")]
        assert server.wait() == (0, "")
    assert time.monotonic() - start < 5
    assert lines[0].startswith("[Step=0] prefill_tokens=")
    assert " decode_tokens=" in lines[0]
    for text in ("splitfuse-demo-5m", "bundled demo", "cpu", "blocks =", "requests of 2048", "/v1", "/docs", "curl -N"):
        assert text in server.panel


DYING = """
import sys
from splitfuse.engine.core import EngineCore
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
    """So that whoever watches the process starts it anew; as a living one it could only refuse."""
    with ServerProcess(wrapper=(sys.executable, "-c", DYING)) as server:
        stream = {**LONG, "stream": True}
        events = parse_events(httpx.post(server.url + "/generate", json=stream, timeout=60).text)
        assert [event["event"] for event in events] == ["token"] * (len(events) - 1) + ["error"]
        assert events[-1]["data"]["error"]["type"] == "server_error"
        code, stderr = server.wait()
    assert code == 1
    assert "OverflowError: a bug of the engine" in stderr
    assert stderr.splitlines()[-1].startswith("splitfuse: error: the engine has died of the error in the log")


def test_queue_full():
    args = ("--max-queue-size", "2", "--max-num-seqs", "1")
    with ServerProcess(*args) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        responses = [client.post("/generate", json={**LONG, "max_tokens": 2000}) for _ in range(6)]
        refused = [response for response in responses if response.status_code != 202]
        assert 2 <= len(refused) <= 4
        for response in refused:
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) >= 1
            assert response.json()["error"]["code"] == "queue_full"
        for response in responses:
            if response.status_code == 202:
                client.delete(response.headers["location"])
        assert client.post("/generate", json={"prompt": "x", "max_tokens": 1}).status_code == 202


def cpu_seconds(pid):
    """What a process has used so far; 0 where the system does not tell."""
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
        while "ready" not in seen and time.monotonic() - start < 30:
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


def test_bad_host():
    one_line(run_cli("serve", "--host", "no.such.host.invalid"), "no.such.host.invalid")


@pytest.mark.parametrize(
    ("args", "texts"),
    [
        (["serve", "--port", "x"], ["--port: 'x' is not an integer"]),
        (["serve", "--max-num-seq", "1"], ["did you mean --max-num-seqs?"]),
        (["serve", "--quantize"], ["--quantize is not known to `splitfuse serve`"]),
        (["serve", "a", "b"], ["b is not known"]),
        (["serve", ""], ["model is an empty string"]),
        (["serve", "--dtype", "int3"], ["dtype 'int3'"]),
        (["serve", "--config", "/no/such.yaml"], ["/no/such.yaml"]),
        (["serve", "/no/such/folder"], ["/no/such/folder", "does not exist"]),
        (["serve", "--max-model-len", "1000000"], ["1000000", "2048"]),
        (["serve", "--device", "cuda", "--port", "0"], ["--device cuda"]),
        (["generate"], ["-p/--prompt"]),
        (["generate", "-p", ""], ["prompt is empty"]),
        (["generate", "-p", "x", "-n", "0"], ["max_tokens"]),
        (["generate", "-p", "x", "-n", "five"], ["'five' is not an integer"]),
        (["generate", "-p", "x", "--port", "5"], ["--port is not known to `splitfuse generate`"]),
        (["swim"], ["invalid choice: 'swim'"]),
        (["bench"], ["serve", "offline"]),
        (["bench", "swim"], ["serve", "offline"]),
    ],
    ids=" ".join,
)
def test_slips_on_the_command_line(args, texts, one_line_here):
    one_line_here(args, *texts)


def test_environment_slip():
    one_line(run_cli("serve", env={"SPLITFUSE_PROT": "1"}), "SPLITFUSE_PROT", "did you mean SPLITFUSE_PORT?")


def test_debug_shows_the_traceback():
    result = run_cli("--debug", "serve", "/no/such/folder")
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert "ConfigError" in result.stderr


def test_help_shows_the_variables():
    result = run_cli("serve", "--help")
    assert result.returncode == 0
    assert "SPLITFUSE_MAX_NUM_SEQS" in result.stdout
    assert run_cli().stdout == run_cli("--help").stdout
    assert run_cli("--version").stdout.startswith("splitfuse ")


def test_warning_beyond_loopback():
    with ServerProcess("--host", "0.0.0.0") as server:
        assert httpx.get(server.url + "/ready").status_code == 200
        server.signal()
        code, stderr = server.wait()
    assert code == 0
    assert stderr.startswith("splitfuse: warning: listening on 0.0.0.0 without an API key")


def test_the_panels_curl_line_brings_the_key():
    assert "$SPLITFUSE_API_KEY" in curl(Settings(api_key=("k",)), "http://x")
    assert "API_KEY" not in curl(Settings(), "http://x")


def test_generate():
    result = run_cli("generate", "-p", "Once upon a time", "-n", "8", "--temperature", "0")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip()


def test_chat():
    lines = "Tell me a story.\n\nAnd another one.\n"
    result = run_cli("chat", "-n", "12", "--temperature", "0", stdin=lines)
    assert result.returncode == 0, result.stderr
    assert result.stderr.splitlines() == ["splitfuse-demo-5m: Ctrl-C stops an answer, Ctrl-D ends"]
    assert result.stdout.strip()


def start_cli(*args):
    """A command whose standard input and output the test holds."""
    command = [sys.executable, "-m", "splitfuse.server", *args, "--num-threads", "1"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **pipes)


def test_ctrl_c_stops_generate():
    with start_cli("generate", "-p", "Once upon a time", "-n", "2000") as process:
        process.stdout.read(10)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, "")


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGPIPE")
def test_a_reader_that_wants_no_more_of_generate():
    with start_cli("generate", "-p", "Once upon a time", "-n", "2000") as process:
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 141


@pytest.fixture
def talkative(tmp_path):
    """The demo model without end tokens: it goes on until it is stopped."""
    folder = tmp_path / "talkative"
    shutil.copytree(DEMO_FOLDER, folder, ignore=shutil.ignore_patterns("*.py", "generation_config.json", "draft"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    return str(folder)


def test_ctrl_c_stops_an_answer_and_ctrl_d_the_chat(talkative):
    with start_cli("chat", talkative, "-n", "600") as process:
        process.stdin.write("Hello\n")
        process.stdin.flush()
        process.stdout.read(10)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate("And again\n", timeout=60)
    assert process.returncode == 0
    assert len(stderr.splitlines()) == 1
    assert len(stdout.strip().split("\n", 1)) == 2
    assert len(stdout) > 600, "the second answer is whole"


@pytest.mark.parametrize("which", ["serve", "offline"])
def test_bench_hands_over(which):
    result = run_cli("bench", which, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert f"splitfuse bench {which}" in result.stdout


def test_doctor(capfd):
    result = run_cli("doctor")
    assert (result.returncode, result.stderr) == (0, "")
    for name in ("python", "torch", "CUDA", "triton", "C compiler", "CPU library", "memory", "cores", "model"):
        assert name in result.stdout
    assert main(["doctor", "/"]) == 1
    broken = capfd.readouterr().out
    assert "config.json is missing" in broken
    assert "fix:" in broken


def test_doctor_says_what_serve_would_say_of_the_model(capfd):
    assert main(["doctor", "/no/such/folder"]) == 1
    assert "model folder '/no/such/folder' does not exist" in capfd.readouterr().out
    assert main(["doctor", ""]) == 1
    assert main(["doctor", "some/name"]) == 0
    assert "would ask the Hugging Face hub" in capfd.readouterr().out


def doctors_line(name, **env):
    result = run_cli("doctor", env=env)
    assert (result.returncode, result.stderr) == (0, "")
    (line,) = [line for line in result.stdout.splitlines() if line.startswith(name)]
    return line


def test_doctor_tries_the_cpu_library(tmp_path):
    assert "ok      built with /" in doctors_line("CPU library") or not kernels_native.find_compiler()
    assert "no C++ compiler" in doctors_line("CPU library", PATH="/nowhere", CXX="")
    broken = tmp_path / "broken-compiler"
    broken.write_text("#!/bin/sh\necho it is broken >&2; exit 1\n")
    broken.chmod(0o755)
    line = doctors_line("CPU library", CXX=str(broken), XDG_CACHE_HOME=str(tmp_path))
    assert f"no      the native CPU library cannot be used ({broken}: it is broken)" in line
    assert "switched off" in doctors_line("CPU library", SPLITFUSE_NATIVE="0")
    assert "none; Triton" in doctors_line("C compiler", PATH="/nowhere", CC="")
