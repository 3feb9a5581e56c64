"""The `splitfuse` command: a mistake is one line on stderr and exit code 2."""

import re
from pathlib import Path

import pytest
from serving import one_line, run_cli
from tables import table

from splitfuse.server.cli import main

DEMO_FOLDER = Path(__file__).parents[2] / "engine/demo_model"


@pytest.mark.parametrize(("args", "texts"), table(__file__, "mistakes"), ids=" ".join)
def test_mistakes_on_the_command_line(args, texts, one_line_here):
    one_line_here(args, *texts)


def test_a_mistake_in_the_environment():
    one_line(run_cli("serve", env={"SPLITFUSE_PROT": "1"}), "SPLITFUSE_PROT", "did you mean SPLITFUSE_PORT?")


def test_debug_shows_the_traceback():
    result = run_cli("--debug", "serve", "/no/such/folder", "--port", "0")
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert "ConfigError" in result.stderr


def test_help_shows_the_variables():
    result = run_cli("serve", "--help", "all")
    assert result.returncode == 0
    assert "SPLITFUSE_MAX_NUM_SEQS" in result.stdout
    assert run_cli().stdout == run_cli("--help").stdout
    assert run_cli("--version").stdout.startswith("splitfuse ")


def test_bench_alone_prints_its_help(capfd):
    assert [main(args) for args in (["bench"], ["bench", "--help"])] == [0, 0]
    out, err = capfd.readouterr()
    assert out.count("splitfuse bench serve|offline|quality [flags]") == 2
    assert err == ""


@pytest.mark.parametrize("which", ["serve", "offline"])
def test_bench_hands_over(which):
    result = run_cli("bench", which, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert f"splitfuse bench {which}" in result.stdout
    without = re.findall(r"^  (--?[a-z-]+)(?: [A-Z]\S*)*\n(?=  -|\n|$)", result.stdout, re.MULTILINE)
    assert without == [], "each flag has a text"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("args", "code", "expected"),
    [
        (("plan", "demo", "--memory", "1MB"), 1, "try       a machine with more memory"),
        (("generate", str(DEMO_FOLDER), "--load-format", "dummy", "-p", "Once", "-n", "2"), 0, ""),
    ],
)
def test_commands_that_need_torchs_meta_kernels(args: tuple[str, ...], code: int, expected: str) -> None:
    """Serving alone does without the kernels; a process of its own, for the suite's has them."""
    result = run_cli(*args)
    assert (result.returncode, result.stderr) == (code, "")
    assert expected in result.stdout
