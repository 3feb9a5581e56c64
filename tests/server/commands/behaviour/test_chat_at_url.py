"""`splitfuse chat` and `generate`, here and at a URL: the same transcript in a terminal, and no second load."""

import io
import os
import pty
import subprocess
import sys
import threading

import pytest
from serving import ServerProcess

from splitfuse.server.cli import main

LIMITS = ("--dtype", "float32", "--num-kv-blocks", "128", "--max-model-len", "512")
SAMPLING = ("-n", "16", "--temperature", "0")
TYPED = (
    "Tell me a story.", "/retry", '"""Once upon', 'a time"""', "/set temperature 0.8", "/set seed 5", "And then?",
    "/undo", "/system Be kind.", "Hello", "/show", "/bye",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Yield a server that announces itself, and the environment in which it is found."""
    env = {"SPLITFUSE_RUNTIME_DIR": str(tmp_path_factory.mktemp("run") / "splitfuse")}
    with ServerProcess(*LIMITS, env=env) as server:
        yield server, env


def transcript(*args):
    """Type the lines into a terminal, each when it is asked for; what the terminal showed."""
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "splitfuse.server", "chat", "demo", *args]
    environment = {**os.environ, "TERM": "dumb", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        shown = ""
        for line in TYPED:
            while not shown.endswith(("> ", ". ")) or shown.endswith(".. "):
                shown += os.read(controller, 4096).decode()
            os.write(controller, f"{line}\n".encode())
            shown += os.read(controller, 1).decode()  # the echo, so that the prompt is not seen twice
        while part := _read(controller):
            shown += part
        watchdog.cancel()
    os.close(controller)
    assert process.returncode == 0
    return shown


def _read(controller):
    try:
        return os.read(controller, 4096).decode()
    except OSError:  # the terminal's other end is closed
        return ""


def test_a_transcript_is_the_same_here_and_at_a_url(server):
    running, _ = server
    here = transcript(*LIMITS, *SAMPLING)
    assert here.count("user: ") == 1, "of /show, after /system"
    assert "assistant: " in here
    assert transcript("--url", running.url, *SAMPLING) == here


def test_a_running_server_is_found(server, capfd, monkeypatch):
    running, env = server
    monkeypatch.setenv(*next(iter(env.items())))
    outputs = []
    for args in ((), LIMITS):  # a flag of the engine asks for an engine of one's own
        monkeypatch.setattr("sys.stdin", io.StringIO("Hi\n"))
        assert main(["chat", "demo", *SAMPLING, *args]) == 0
        outputs.append(capfd.readouterr())
    assert outputs[0].out == outputs[1].out != "\n"
    found = f"splitfuse-demo-5m runs at {running.url}, so the model is not loaded again\n"
    assert outputs[0].err == found + outputs[1].err


def test_a_text_is_continued_the_same(server, capfd):
    running, _ = server
    outputs = []
    for args in (LIMITS, ("--url", running.url)):
        assert main(["generate", "demo", "-p", "Once upon a time", *SAMPLING, *args]) == 0
        outputs.append(capfd.readouterr().out)
    assert outputs[0] == outputs[1] != "\n"


def test_the_speed_of_an_answer_at_a_url(server, capfd, monkeypatch):
    running, _ = server
    monkeypatch.setattr("sys.stdin", io.StringIO("Tell me a story.\n/retry\n"))
    assert main(["chat", "--url", running.url, "--verbose", "--system", "Be brief.", *SAMPLING]) == 0
    lines = capfd.readouterr().err.splitlines()
    assert len([line for line in lines if "tokens/s" in line and "prompt tokens from the cache" in line]) == 2
    assert " 0 of " not in lines[-1], "the second answer's prompt is in the cache"


def test_mistakes(server, one_line_here):
    one_line_here(["chat", "--url", "http://127.0.0.1:1"], "no server answers at http://127.0.0.1:1", "splitfuse ps")
    url = server[0].url
    one_line_here(["generate", "--url", url, "-p", "x" * 9000, "-n", "1"], f"{url} answered 400: ", "512")
