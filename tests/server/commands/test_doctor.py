"""`splitfuse doctor`: what is found, what is missing, and how to fix it."""

import errno
import json
import os
import socket
from pathlib import Path

import pytest
from serving import run_cli

from splitfuse.engine.config import host
from splitfuse.kernels.cpu import compilation
from splitfuse.server.cli import main
from splitfuse.server.commands import doctor
from splitfuse.server.commands.checks.finding import remark
from splitfuse.server.commands.checks.machine import cache, disk, hub_folder, processor
from splitfuse.server.commands.checks.network import hub, port
from splitfuse.server.process.runtime_file import announced


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Let no report ask the hub."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_doctor(capfd):
    result = run_cli("doctor")
    assert (result.returncode, result.stderr) == (0, "")
    names = ("python", "torch", "CUDA", "triton", "C compiler", "CPU library", "processor", "memory", "cores")
    for name in (*names, "disk", "models", "libraries", "port", "network", "SQLite", "matplotlib", "model"):
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


def test_doctor_says_the_limits_of_a_container(capfd, monkeypatch):
    monkeypatch.setattr(doctor, "memory_room", lambda: 2**30)
    monkeypatch.setattr(doctor, "cpu_quota", lambda: 1.5)
    monkeypatch.setattr(host, "cpu_quota", lambda: 1.5)
    main(["doctor", "some/name", "--json"])
    found = {finding["name"]: finding for finding in json.loads(capfd.readouterr().out)}
    assert found["memory"]["text"].endswith("GiB, of which its control group leaves this process 1.0 GiB")
    assert not found["memory"]["ok"], "too little, whatever the machine has"
    assert found["cores"]["text"] == f"1 usable of {os.cpu_count()}, with a CPU quota of 1.5"


def doctors_line(name, **env):
    return line_of(name, doctors_report(**env))


def doctors_report(**env):
    result = run_cli("doctor", env=env)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def line_of(name, report):
    (line,) = [line for line in report.splitlines() if line.startswith(name)]
    return line


@pytest.mark.thorough  # 10 s
def test_doctor_tries_the_cpu_library(tmp_path):
    assert "ok      built with /" in doctors_line("CPU library") or not compilation.find_compiler()
    without = doctors_report(PATH="/nowhere", CXX="", CC="")
    assert "no C++ compiler" in line_of("CPU library", without)
    assert "none; Triton" in line_of("C compiler", without)
    broken = tmp_path / "broken-compiler"
    broken.write_text("#!/bin/sh\necho it is broken >&2; exit 1\n")
    broken.chmod(0o755)
    environment = {"CXX": str(broken), "XDG_CACHE_HOME": str(tmp_path)}
    unbuilt = doctors_line("CPU library", **environment)
    assert f"ok      {broken} builds it at the first start; " in unbuilt
    assert unbuilt.endswith("`splitfuse doctor --build` builds it now")
    result = run_cli("doctor", "--build", env=environment)
    assert (result.returncode, result.stderr.count("\n")) == (0, 1)
    assert result.stderr.startswith("splitfuse: building the CPU library for this processor, once: ")
    line = line_of("CPU library", result.stdout)
    assert f"no      the native CPU library cannot be used ({broken}: it is broken)" in line
    assert "switched off" in doctors_line("CPU library", SPLITFUSE_NATIVE="0")


def test_what_doctor_advises_can_be_installed(capfd, monkeypatch):
    """No index has splitfuse, so its extras cannot be asked for by name."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    main(["doctor", "some/name"])
    shown = capfd.readouterr().out
    assert "pip install matplotlib" in shown
    assert "splitfuse[" not in shown


@pytest.mark.parametrize("found", [None, "/usr/bin/nvidia-smi"])
def test_a_torch_for_cuda_is_told_how_to_be_small_where_there_is_no_gpu(capfd, monkeypatch, found):
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("shutil.which", lambda name: found)
    main(["doctor", "some/name"])
    shown = capfd.readouterr().out
    assert ("fix: pip install torch --index-url https://download.pytorch.org/whl/cpu" in shown) == (found is None)


def test_the_report_as_json(capfd):
    assert main(["doctor", "/", "--json"]) == 1
    findings = {finding["name"]: finding for finding in json.loads(capfd.readouterr().out)}
    assert findings["model"]["is_fault"]
    assert findings["model"]["fix"] is not None
    assert findings["python"] == {**findings["python"], "ok": True, "is_fault": False, "fix": None}


def test_a_missing_gpu_is_no_fault(capfd, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    main(["doctor", "some/name"])
    (line,) = [line for line in capfd.readouterr().out.splitlines() if line.startswith("CUDA")]
    assert line == "CUDA         ok      no NVIDIA GPU: the CPU serves"


def test_a_gpu_that_cannot_serve_is_named(capfd, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda index: "Tesla T4")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda index: (7, 5))
    main(["doctor", "some/name"])
    (line,) = [line for line in capfd.readouterr().out.splitlines() if line.startswith("CUDA")]
    assert "not supported: Tesla T4 has compute capability 7.5" in line


@pytest.mark.parametrize(
    ("has_nccl", "words"),
    [
        (True, "ok      for --tensor-parallel-size up to 2, written and tested without cards: never run on two GPUs"),
        (False, "not in this torch: --tensor-parallel-size has one GPU"),
    ],
)
def test_several_gpus_need_nccl(capfd, monkeypatch, has_nccl, words):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: has_nccl)
    main(["doctor", "some/name"])
    (line,) = [line for line in capfd.readouterr().out.splitlines() if line.startswith("NCCL")]
    assert words in line


def test_an_intel_gpu_is_refused_in_a_sentence(capfd, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("torch.xpu.is_available", lambda: True)
    main(["doctor", "some/name"])
    assert "no NVIDIA GPU, and Intel GPUs are not supported: the CPU serves" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            "model name\t: Xeon\nflags\t\t: avx2 avx512f avx512_vnni amx_tile amx_bf16",
            "Xeon: AMX, VNNI, bf16, AVX-512, AVX2",
        ),
        ("model name\t: Core\nflags\t\t: avx2 avx_vnni", "Core: VNNI, AVX2"),
        ("Features\t: asimd i8mm bf16", "bf16, i8mm, NEON"),
        ("model name\t: Old\nflags\t\t: sse2", "neither AVX2 nor NEON"),
        ("", "its instructions are unknown"),
    ],
)
def test_the_processors_instructions(tmp_path: Path, fields: str, expected: str) -> None:
    (tmp_path / "cpuinfo").write_text(fields + "\n\nmodel name: another\n")
    assert expected in processor(tmp_path / "cpuinfo").text


def test_a_taken_port_is_a_remark() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.getsockname()[1]
        taken = port(number)
    assert (taken.ok, taken.is_fault) == (False, False)
    assert taken.text == f"{number} cannot be taken: {os.strerror(errno.EADDRINUSE)}"
    assert port(number).ok


def test_our_own_server_on_the_port_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("SPLITFUSE_RUNTIME_DIR", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.getsockname()[1]
        with announced(host="127.0.0.1", port=number, model="mine"):
            found = port(number)
    assert (found.ok, found.text) == (True, f"{number} has your splitfuse, which serves mine")
    assert str(remark("network", "off")).split() == ["network", "-", "off"]


def test_the_way_to_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "HF_HUB_OFFLINE" in hub().text
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
    away = hub()
    assert (away.ok, away.is_fault) == (False, False)
    assert "does not answer" in away.text


def test_caches_and_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache("models", tmp_path / "none").text == f"{tmp_path}/none, empty"
    (tmp_path / "weights").write_bytes(bytes(3 * 2**20))
    (tmp_path / "link").symlink_to(tmp_path / "weights")
    assert cache("models", tmp_path).text == f"{tmp_path}, 3.0 MiB"
    assert f"free at {tmp_path}" in disk(tmp_path / "none/deeper").text
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 2**30}))
    assert not disk(tmp_path).ok
    monkeypatch.setenv("HF_HOME", "/elsewhere")
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    assert hub_folder() == Path("/elsewhere/hub")
