"""The `splitfuse` command: a mistake is one line on stderr and exit code 2."""

import pytest
from serving import one_line, run_cli


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
def test_mistakes_on_the_command_line(args, texts, one_line_here):
    one_line_here(args, *texts)


def test_a_mistake_in_the_environment():
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


@pytest.mark.parametrize("which", ["serve", "offline"])
def test_bench_hands_over(which):
    result = run_cli("bench", which, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert f"splitfuse bench {which}" in result.stdout
