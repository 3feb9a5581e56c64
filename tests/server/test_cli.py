"""The `splitfuse` command: a mistake is one line on stderr and exit code 2."""

import re
from pathlib import Path

import pytest
from serving import one_line, run_cli

from splitfuse.server.cli import main

DEMO_FOLDER = Path(__file__).parents[2] / "engine/demo_model"


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
        (["serve", "/no/such/folder", "--port", "0"], ["/no/such/folder", "does not exist"]),
        (["serve", "--max-model-len", "1000000", "--port", "0"], ["1000000", "2048"]),
        (["serve", "--device", "cuda", "--port", "0"], ["--device cuda"]),
        (["generate"], ["-p/--prompt"]),
        (["generate", "-p", ""], ["prompt is empty"]),
        (["generate", "-p", "x", "-n", "0"], ["max_tokens"]),
        (["generate", "-p", "x", "-n", "five"], ["'five' is not an integer"]),
        (["generate", "-p", "x", "--port", "5"], ["--port is not known to `splitfuse generate`"]),
        (["generate", "once", "upon"], ["splitfuse generate -p 'once upon'"]),
        (["generate", "once upon"], ["stands where MODEL does", "splitfuse generate -p 'once upon'"]),
        (["swim"], ["invalid choice: 'swim'"]),
        (["pull", "no/such/name"], ["model folder 'no/such/name' does not exist"]),
        (["rm", "demo"], ["demo belongs to a Python package"]),
        (["rm", "qwen3:0.6b", "--yes"], ["qwen3:0.6b is not in the cache"]),
        (["--port", "1"], ["--port goes with a command: splitfuse serve --port 1"]),
        (["--model=x"], ["--model goes with a command: splitfuse serve --model=x"]),
        (["serve", "-pp", "2"], ["-pp 2 is not taken: --tensor-parallel-size"]),
        (["serve", "demo", "-tp", "2", "--tensor-parallel-slices", "3"], ["a multiple of tensor_parallel_size"]),
        (["chat", "--trust-remote-code"], ["--trust-remote-code is not taken: code"]),
        (
            ["serve", "--model", "/no/such/folder", "--tensor-parallel-size=1", "--port=0"],
            ["/no/such/folder", "does not exist"],
        ),
        (["completion", "tcsh"], ["invalid choice: 'tcsh'"]),
        (["bench", "swim"], ["serve", "offline"]),
    ],
    ids=" ".join,
)
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
