"""`splitfuse doctor`: what is found, what is missing, and how to fix it."""

from serving import run_cli

from splitfuse.kernels.cpu import build
from splitfuse.server.cli import main


def test_doctor(capfd):
    result = run_cli("doctor")
    assert (result.returncode, result.stderr) == (0, "")
    names = ("python", "torch", "CUDA", "triton", "C compiler", "CPU library", "memory", "cores", "model")
    for name in (*names, "matplotlib"):
        assert name in result.stdout
    assert main(["doctor", "/"]) == 1
    broken = capfd.readouterr().out
    assert "config.json is missing" in broken
    assert "fix:" in broken


def test_doctor_says_what_serve_would_say_of_the_model(capfd, tmp_path):
    assert main(["doctor", "/no/such/folder"]) == 1
    assert "model folder '/no/such/folder' does not exist" in capfd.readouterr().out
    assert main(["doctor", ""]) == 1
    (tmp_path / "config.json").write_text('{"architectures": ["BloomForCausalLM"]}')
    assert main(["doctor", str(tmp_path)]) == 1, "an architecture that is not supported"
    assert main(["doctor", "some/name"]) == 0
    assert "would ask the Hugging Face hub" in capfd.readouterr().out


def doctors_line(name, **env):
    result = run_cli("doctor", env=env)
    assert (result.returncode, result.stderr) == (0, "")
    (line,) = [line for line in result.stdout.splitlines() if line.startswith(name)]
    return line


def test_doctor_tries_the_cpu_library(tmp_path):
    assert "ok      built with /" in doctors_line("CPU library") or not build.find_compiler()
    assert "no C++ compiler" in doctors_line("CPU library", PATH="/nowhere", CXX="")
    broken = tmp_path / "broken-compiler"
    broken.write_text("#!/bin/sh\necho it is broken >&2; exit 1\n")
    broken.chmod(0o755)
    line = doctors_line("CPU library", CXX=str(broken), XDG_CACHE_HOME=str(tmp_path))
    assert f"no      the native CPU library cannot be used ({broken}: it is broken)" in line
    assert "switched off" in doctors_line("CPU library", SPLITFUSE_NATIVE="0")
    assert "none; Triton" in doctors_line("C compiler", PATH="/nowhere", CC="")


def test_what_doctor_advises_can_be_installed(capfd, monkeypatch):
    """No index has splitfuse, so its extras cannot be asked for by name."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    main(["doctor", "some/name"])
    shown = capfd.readouterr().out
    assert "pip install matplotlib" in shown
    assert "splitfuse[" not in shown
