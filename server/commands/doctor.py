"""`splitfuse doctor`: reports installed packages, the device, and missing parts with their fixes."""

import contextlib
import importlib
import importlib.util
import logging
import os
import platform
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...engine.config import EngineConfig
from ...engine.config.cores import num_usable_cores
from ...engine.config.named_models import default_model
from ...engine.errors import ConfigError
from ...engine.execution.models.checkpoint import local_model
from ...engine.execution.models.registry import read_model_config

# Name, module, packages, and the feature that needs them.
_EXTRAS = (
    ("matplotlib", "matplotlib", "matplotlib", "splitfuse plot"),
    ("psycopg", "psycopg", "'psycopg[binary]'", "--results postgresql://…"),
    ("cryptography", "cryptography", "cryptography", "--results-key-file"),
    (
        "OTLP",
        "opentelemetry.exporter.otlp.proto.http",
        "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
        "--otlp-traces-endpoint",
    ),
)
SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")


@dataclass(frozen=True)
class Finding:
    """One line of the report. `fix` is shown if it is not ok. With `is_needed` False the line is only a remark."""

    name: str
    text: str
    ok: bool = True
    fix: str = ""
    is_needed: bool = True

    def __str__(self) -> str:
        mark = "ok" if self.ok else "MISSING" if self.is_needed else "no"
        fix = f"\n{'':<21}fix: {self.fix}" if self.fix and not self.ok else ""
        return f"{self.name:<12} {mark:<7} {self.text}{fix}"


def _remark(name: str, text: str, *, fix: str = "") -> Finding:
    return Finding(name, text, False, fix, is_needed=False)


def doctor(model: str | None) -> int:
    """Print the report. Returns 0 if everything needed is there, else 1."""
    machine: list[Callable[[], Finding]] = [_python, _torch, _cuda, _triton, _c_compiler, _cpu_library, _memory, _cores]
    findings = [*(check() for check in machine), _sqlite(), *map(_extra, _EXTRAS), _model(model)]
    print("\n".join(map(str, findings)))
    return 0 if all(finding.ok or not finding.is_needed for finding in findings) else 1


def _python() -> Finding:
    version = platform.python_version()
    is_enough = sys.version_info >= (3, 11)
    return Finding("python", f"{version} at {sys.executable}", is_enough, "install Python 3.11 or newer")


def _torch() -> Finding:
    try:
        torch = importlib.import_module("torch")
    except Exception as exc:  # a broken install can raise anything
        return Finding("torch", f"{type(exc).__name__}: {exc}", False, "pip install 'torch>=2.9'")
    target = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    return Finding("torch", f"{torch.__version__}, built for {target}")


def _cuda() -> Finding:
    try:
        torch = importlib.import_module("torch")
    except Exception:
        return _remark("CUDA", "unknown without torch")
    if torch.cuda.is_available():
        gib = torch.cuda.get_device_properties(0).total_memory / 2**30
        return Finding("CUDA", f"{torch.cuda.get_device_name(0)}, {gib:.0f} GiB, {torch.cuda.device_count()} device(s)")
    if shutil.which("nvidia-smi") is None:
        return _remark("CUDA", "no NVIDIA driver; the CPU is used", fix="install the NVIDIA driver")
    if torch.version.cuda is None:
        return _remark("CUDA", "a driver is there, but this torch is for CPU", fix="pip install torch")
    fix = "compare `nvidia-smi` with torch.version.cuda; in a container start it with --gpus all"
    return _remark("CUDA", "a driver is there, but torch sees no device", fix=fix)


def _triton() -> Finding:
    try:
        return Finding("triton", importlib.import_module("triton").__version__)
    except Exception:
        return _remark("triton", "not installed; only CUDA needs it", fix="pip install triton")


def _c_compiler() -> Finding:
    # Triton's own order, which does not include `cc`.
    for name in filter(None, (os.environ.get("CC"), "gcc", "clang")):
        if path := shutil.which(name):
            return Finding("C compiler", f"{path}, for Triton on CUDA")
    text = "none; Triton, which only CUDA uses, needs one at run time"
    return _remark("C compiler", text, fix="apt-get install gcc, or set CC")


def _cpu_library() -> Finding:
    """Try to build and load the CPU's own kernels, because a compiler alone proves little."""
    name, slow = "CPU library", "CPU attention runs on torch ops, several times slower"
    if os.environ.get("SPLITFUSE_NATIVE") == "0":
        return _remark(name, f"switched off by SPLITFUSE_NATIVE=0; {slow}", fix="unset it")
    logged: list[str] = []
    try:
        native = importlib.import_module("...kernels.cpu.build", __package__)
        compiler = native.find_compiler()
        with _captured_log("splitfuse.kernels", logged):
            is_loaded = native.library() is not None
    except Exception as exc:  # torch is broken, or the library lacks a function
        return _remark(name, f"{type(exc).__name__}: {exc}", fix="fix torch first")
    if is_loaded:
        return Finding(name, f"built with {compiler} and loaded")
    if compiler is None:
        return _remark(name, f"no C++ compiler; {slow}", fix="apt-get install g++, or set CXX")
    reason = " ".join(" ".join(logged).split()) or "not loaded"
    return _remark(name, reason, fix="apt-get install g++, or set CXX to one that works")


def _sqlite() -> Finding:
    """Report the version. Before 3.51.3 (3.44.6, 3.50.7) several connections can lose commits; `serve` uses one."""
    version = sqlite3.sqlite_version_info
    is_sound = version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45)
    text = f"{sqlite3.sqlite_version}, for --results FILE"
    if is_sound:
        return Finding("SQLite", text)
    return _remark("SQLite", f"{text}: open the file with no other program while it is served (fault fixed in 3.51.3)")


def _extra(extra: tuple[str, str, str, str]) -> Finding:
    name, module, packages, use = extra
    try:
        is_there = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        is_there = False
    if is_there:
        return Finding(name, f"for {use}")
    return _remark(name, f"not installed; only {use} needs it", fix=f"pip install {packages}")


@contextlib.contextmanager
def _captured_log(logger_name: str, logged: list[str]) -> Iterator[None]:
    """Collect the logger's messages in `logged` instead of logging them."""

    def keep(record: logging.LogRecord) -> bool:
        logged.append(record.getMessage())
        return False

    logger = logging.getLogger(logger_name)
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def _memory() -> Finding:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    except (AttributeError, ValueError, OSError):
        return _remark("memory", "unknown on this system")
    fix = "use a smaller model, or --kv-cache-memory-bytes"
    return Finding("memory", f"{total:.1f} GiB", total >= 2, fix, is_needed=False)


def _cores() -> Finding:
    return Finding("cores", f"{num_usable_cores()} usable of {os.cpu_count()}")


def _model(model: str | None) -> Finding:
    try:
        EngineConfig(model=model)  # refuses an empty name
        folder = local_model(default_model() if model is None else model)
        if folder is None:  # a report must not download a model
            return _remark("model", f"{model} is no local folder; `serve` would ask the Hugging Face hub")
        config = read_model_config(folder)
    except (ConfigError, ImportError) as exc:
        return Finding("model", str(exc), False, "give a folder that is there and whole, of a supported model")
    quantized = f" ({config.quantization.name})" if config.quantization else ""
    text = f"{config.architecture}{quantized} in {folder}"
    if folder.is_file():  # one file holds everything
        return Finding("model", f"{text}: {config.description}")
    missing = [" or ".join(names) for names in (SAFETENSORS, ("tokenizer.json",)) if not _has_any(folder, names)]
    return Finding("model", f"{text}: no {', no '.join(missing)}" if missing else text, not missing, "fetch it again")


def _has_any(folder: Path, names: tuple[str, ...]) -> bool:
    return any((folder / name).exists() for name in names)
