"""serve() with small processes in place of the server: start, wait, failure, stop."""

import socket
import sys
from pathlib import Path

import pytest

from splitfuse.client import APIConnectionError, Server, ServerStartError, serve, server_process

ANSWERS = """
import http.server, os, signal, socketserver, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ready" else 404)
        self.end_headers()
    def log_message(self, *args):
        pass
print("arguments", *sys.argv[1:])
print("key", os.environ.get("SPLITFUSE_API_KEY"))
signal.signal(signal.SIGTERM, {on_term})
socketserver.TCPServer(("127.0.0.1", port), Handler).serve_forever()
"""
POLITE = ANSWERS.replace("{on_term}", "lambda *_: sys.exit(0)")
DEAF = ANSWERS.replace("{on_term}", "signal.SIG_IGN")
FAILS = "import sys; print('a panel'); sys.exit('splitfuse: error: no such model\\n')"
SLEEPS = "import signal; signal.pause()"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file whose Python text runs in place of the server."""
    path = tmp_path / "program.py"
    monkeypatch.setattr(server_process, "_COMMAND", (sys.executable, str(path)))
    return path


def arguments_of(server: Server) -> str:
    """Return the arguments with which the program was started."""
    return server.output().partition("arguments ")[2].partition("\n")[0]


def test_it_is_ready_when_it_returns_and_gone_after_stop(program: Path) -> None:
    program.write_text(POLITE)
    server = serve("some/model", max_num_seqs=8, enable_prefix_caching=False, log_steps=True, device=None)
    assert server.client.is_ready()
    port = server.base_url.rpartition(":")[2]
    assert arguments_of(server) == (
        f"some/model --max-num-seqs 8 --no-enable-prefix-caching --log-steps --host 127.0.0.1 --port {port}"
    )
    assert "running" in repr(server)
    assert server.stop() == 0
    assert server.stop() == 0
    assert "ended with 0" in repr(server)


def test_without_a_model_it_is_the_demo_and_the_key_stays_off_the_command_line(program: Path) -> None:
    program.write_text(POLITE)
    with serve(api_key=["secret", "other"], host="0.0.0.0") as server:
        assert arguments_of(server).startswith("--host 0.0.0.0 --port")
        assert "key secret,other" in server.output()
        assert server.base_url.startswith("http://127.0.0.1:")
        assert server.client._core.http_options()["headers"] == {"authorization": "Bearer secret"}
    assert server.client.base_url == server.base_url


def test_a_server_that_ends_is_reported_with_its_last_line(program: Path) -> None:
    program.write_text(FAILS)
    with pytest.raises(ServerStartError, match="exit status 1: splitfuse: error: no such model") as caught:
        serve()
    assert isinstance(caught.value, APIConnectionError)


def test_a_server_that_takes_too_long_is_stopped(program: Path) -> None:
    program.write_text(SLEEPS)
    with pytest.raises(ServerStartError, match=r"not ready within 0\.2 s: it said nothing"):
        serve(ready_timeout=0.2)


def test_a_server_that_ignores_sigterm_is_killed(program: Path) -> None:
    program.write_text(DEAF)
    server = serve()
    assert server.stop(timeout=0.2) == -9


def test_a_port_that_was_taken_meanwhile_is_replaced(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program.write_text("import sys\ntry:\n" + "".join(f"    {line}\n" for line in POLITE.splitlines()))
    with program.open("a") as file:
        file.write("except OSError as exc:\n    sys.exit(f'splitfuse: error: cannot listen: {exc}')\n")
    monkeypatch.setattr(server_process, "PROBE_TIMEOUT_S", 0.2)
    free_port = server_process.free_port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        answers = iter([taken.getsockname()[1]])
        monkeypatch.setattr(server_process, "free_port", lambda host: next(answers, None) or free_port(host))
        with serve() as server:
            assert server.base_url != f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_a_stated_port_that_is_taken_is_refused_at_once(program: Path, tmp_path: Path) -> None:
    program.write_text("import pathlib; pathlib.Path(__file__).with_name('started').touch()")
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ServerStartError, match="in use"):
        serve(port=taken.getsockname()[1])
    assert not (tmp_path / "started").exists()


def test_a_keyword_that_no_server_knows_is_refused_by_name() -> None:
    with pytest.raises(ServerStartError, match="quantization-mode"):
        serve("demo", quantization_mode="wf6af16")
