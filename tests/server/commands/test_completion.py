"""`splitfuse completion`: scripts that shells can read, made of the parser's own flags."""

import shutil
import subprocess

import pytest

from splitfuse.server.cli import main


def script(shell, capfd):
    assert main(["completion", shell]) == 0
    return capfd.readouterr().out


def completed(text, words):
    """What bash offers after these words."""
    call = '; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _splitfuse; echo "${COMPREPLY[@]}"'
    program = f"{text}\nCOMP_WORDS=({words}){call}"
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
    assert completed(text, "splitfuse generate --no-req") == []
    assert completed(text, "splitfuse bench --burst") == ["--burstiness"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_all_of_it(shell, capfd):
    text = script(shell, capfd)
    dash = "-l " if shell == "fish" else "--"
    for name in ("max-num-seqs", "served-model-name", "clients", "prompt"):
        assert dash + name in text
    assert "request-rate" in text, "of bench serve"
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, check=True)
        assert checked.stderr == ""
