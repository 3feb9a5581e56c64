"""`splitfuse completion`: scripts that shells can read, made of the parser's own flags."""

import shutil
import subprocess

import pytest

from splitfuse.server.cli import main
from splitfuse.server.commands.completion import SHELLS


def script(shell, capfd):
    assert main(["completion", shell]) == 0
    return capfd.readouterr().out


def completed(text, words):
    """Return the words that bash offers after these."""
    program = f"""{text}
        COMP_WORDS=({words})
        COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _shtab_splitfuse splitfuse "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
        echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_flags_and_choices(capfd):
    text = script("bash", capfd)
    assert completed(text, "splitfuse se") == ["serve"]
    assert {"serve", "bench", "completion", "simulate"} <= {*completed(text, "splitfuse ''")}
    assert completed(text, "splitfuse serve --max-num") == ["--max-num-seqs", "--max-num-batched-tokens"]
    assert completed(text, "splitfuse serve --no-request") == ["--no-request-log"]
    assert completed(text, "splitfuse serve --dtype b") == ["bfloat16"]
    assert completed(text, "splitfuse completion f") == ["fish"]
    assert completed(text, "splitfuse generate --max-num-b") == ["--max-num-batched-tokens"], "hidden in its --help"
    assert completed(text, "splitfuse generate --no-req") == []
    assert completed(text, "splitfuse bench --burst") == ["--burstiness"]
    assert completed(text, "splitfuse bench serve --burst") == ["--burstiness"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_files_where_no_words_are_known(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bench.toml").touch()
    text = script("bash", capfd)
    for words in ("serve ben", "serve --config ben", "replay ben", "bench serve --trace ben"):
        assert completed(text, f"splitfuse {words}") == ["bench.toml"]
    assert completed(text, "splitfuse serve --dtype ben") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_all_of_it(shell, capfd):
    text = script(shell, capfd)
    dash = "-l " if shell == "fish" else "--"
    for name in ("max-num-seqs", "served-model-name", "clients", "prompt"):
        assert dash + name in text
    assert "request-rate" in text, "of bench serve"
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, check=True)
        assert checked.stderr == ""
