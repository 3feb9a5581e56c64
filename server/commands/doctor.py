"""`splitfuse doctor`: reports installed packages, the device, and missing parts with their fixes."""

import contextlib
import functools
import importlib
import importlib.util
import json
import logging
import os
import platform
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from ...engine.config import EngineConfig
from ...engine.config.host import cpu_quota, memory_room, num_usable_cores
from ...engine.config.named_models import default_model
from ...engine.errors import ConfigError
from ...engine.execution.models.layer_states import recurrent_parts
from ...engine.execution.models.registry import read_model_config
from ...engine.formats.checkpoint import local_model
from .checks.finding import Finding, remark
from .checks.machine import cache, disk, hub_folder, processor
from .checks.network import hub, port
from .plan import NEVER_RUN

# Name, module, packages, and the feature that needs them.
_EXTRAS = (
    ("matplotlib", "matplotlib", "matplotlib", "splitfuse plot"),
    ("psycopg", "psycopg", "'psycopg[binary]'", "--results postgresql://…"),
)
CPU_INDEX = "--index-url https://download.pytorch.org/whl/cpu"
DEFAULT_PORT = 8000
SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")


def doctor(model: str | None, *, as_json: bool = False, builds: bool = False) -> int:
    """Print the report. Returns 0 if everything needed is there, else 1. `builds`: build the CPU library first."""
    checks: list[Callable[[], Finding]] = [_python, _torch, _cuda, _triton, _c_compiler]
    checks += [_nccl] * (_num_gpus() > 1)
    checks += [functools.partial(_cpu_library, builds=builds), processor, _memory, _cores]
    checks += [lambda: disk(hub_folder()), lambda: cache("models", hub_folder()), _built_libraries]
    checks += [lambda: port(_port()), hub, _sqlite]
    findings = [*(check() for check in checks), *map(_extra, _EXTRAS), _model(model)]
    if as_json:
        print(json.dumps([finding.to_dict() for finding in findings]))
    else:
        print("\n".join(map(str, findings)))
    return int(any(finding.is_fault for finding in findings))


def _port() -> int:
    text = os.environ.get("SPLITFUSE_PORT", "")
    return int(text) if text.isdigit() and int(text) < 2**16 else DEFAULT_PORT


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
    text = f"{torch.__version__}, built for {target}"
    if torch.version.cuda and not torch.cuda.is_available() and shutil.which("nvidia-smi") is None:
        return remark("torch", f"{text}; the CPU build is 3 GB smaller", fix=f"pip install torch {CPU_INDEX}")
    return Finding("torch", text)


def _cuda() -> Finding:
    try:
        torch = importlib.import_module("torch")
    except Exception:
        return remark("CUDA", "unknown without torch")
    if torch.cuda.is_available():
        reason = importlib.import_module("splitfuse.kernels.cuda.device_info").unsupported_gpu()
        if reason is not None:
            return remark("CUDA", f"not supported: {reason}", fix="serve with --device cpu")
        gib = torch.cuda.get_device_properties(0).total_memory / 2**30
        return Finding("CUDA", f"{torch.cuda.get_device_name(0)}, {gib:.0f} GiB, {torch.cuda.device_count()} device(s)")
    if shutil.which("nvidia-smi") is None:
        is_intel = hasattr(torch, "xpu") and torch.xpu.is_available()
        return Finding("CUDA", f"no NVIDIA GPU{', and Intel GPUs are not supported' * is_intel}: the CPU serves")
    if torch.version.cuda is None:
        return remark("CUDA", "a driver is there, but this torch is for CPU", fix="pip install torch")
    fix = "compare `nvidia-smi` with torch.version.cuda; in a container start it with --gpus all"
    return remark("CUDA", "a driver is there, but torch sees no device", fix=fix)


def _num_gpus() -> int:
    try:
        return int(importlib.import_module("torch").cuda.device_count())
    except Exception:
        return 0


def _nccl() -> Finding:
    distributed = importlib.import_module("torch.distributed")
    if distributed.is_available() and distributed.is_nccl_available():
        text = f"for --tensor-parallel-size up to {_num_gpus()}, {NEVER_RUN}"
        return Finding("NCCL", text)
    return remark("NCCL", "not in this torch: --tensor-parallel-size has one GPU", fix="pip install torch, on Linux")


def _triton() -> Finding:
    try:
        return Finding("triton", importlib.import_module("triton").__version__)
    except Exception:
        if shutil.which("nvidia-smi") is None:
            return Finding("triton", "not installed, and only CUDA needs it")
        return remark("triton", "not installed; CUDA needs it", fix="pip install triton")


def _c_compiler() -> Finding:
    # Triton's own order, which does not include `cc`.
    for name in filter(None, (os.environ.get("CC"), "gcc", "clang")):
        if path := shutil.which(name):
            return Finding("C compiler", f"{path}, for Triton on CUDA")
    text = "none; Triton, which only CUDA uses, needs one at run time"
    if shutil.which("nvidia-smi") is None:
        return Finding("C compiler", text)
    return remark("C compiler", text, fix="apt-get install gcc, or set CC")


def _cpu_library(*, builds: bool) -> Finding:
    """Load the CPU's own kernels. `builds`: build them too if necessary, because a compiler alone proves little."""
    name, slow = "CPU library", "CPU attention runs on torch ops, several times slower"
    if os.environ.get("SPLITFUSE_NATIVE") == "0":
        return remark(name, f"switched off by SPLITFUSE_NATIVE=0; {slow}", fix="unset it")
    logged: list[str] = []
    try:
        compilation = importlib.import_module("...kernels.cpu.compilation", __package__)
        found = importlib.import_module("...kernels.cpu.prebuilt", __package__).find()
        compiler = compilation.find_compiler()
        if found is None and compiler is not None and not builds and not compilation.is_built(compiler):
            return Finding(name, f"{compiler} builds it at the first start; `splitfuse doctor --build` builds it now")
        native = importlib.import_module("...kernels.cpu.build", __package__)
        with _captured_log("splitfuse.kernels", logged):
            is_loaded = native.library() is not None
    except Exception as exc:  # torch is broken, or the library lacks a function
        return remark(name, f"{type(exc).__name__}: {exc}", fix="fix torch first")
    if is_loaded:
        how = f"built with {compiler}" if found is None else f"{found.name.split('-')[0]}, which came with the package,"
        return Finding(name, f"{how} and loaded")
    if compiler is None:
        return remark(name, f"no C++ compiler; {slow}", fix="apt-get install g++, or set CXX")
    reason = " ".join(" ".join(logged).split()) or "not loaded"
    return remark(name, reason, fix="apt-get install g++, or set CXX to one that works")


def _built_libraries() -> Finding:
    try:
        compilation = importlib.import_module("...kernels.cpu.compilation", __package__)
        return cache("libraries", compilation.cache_folder())
    except Exception as exc:  # the user has no home folder
        return remark("libraries", f"{type(exc).__name__}: {exc}")


def _sqlite() -> Finding:
    """Report the version. Before 3.51.3 (3.44.6, 3.50.7) several connections can lose commits; `serve` uses one."""
    version = sqlite3.sqlite_version_info
    is_sound = version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45)
    text = f"{sqlite3.sqlite_version}, for --results FILE"
    if is_sound:
        return Finding("SQLite", text)
    return remark("SQLite", f"{text}: open the file with no other program while it is served (fault fixed in 3.51.3)")


def _extra(extra: tuple[str, str, str, str]) -> Finding:
    name, module, packages, use = extra
    try:
        is_there = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        is_there = False
    if is_there:
        return Finding(name, f"for {use}")
    return remark(name, f"not installed; only {use} needs it", fix=f"pip install {packages}")


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
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return remark("memory", "unknown on this system")
    fix, room = "use a smaller model, or --kv-cache-memory-bytes", memory_room()
    limit = "" if room is None else f", of which its control group leaves this process {room / 2**30:.1f} GiB"
    is_enough = min(total, total if room is None else room) >= 2 * 2**30
    return Finding("memory", f"{total / 2**30:.1f} GiB{limit}", is_enough, fix, is_needed=False)


def _cores() -> Finding:
    quota = cpu_quota()
    limit = "" if quota is None else f", with a CPU quota of {quota:.1f}"
    return Finding("cores", f"{num_usable_cores()} usable of {os.cpu_count()}{limit}")


def _model(model: str | None) -> Finding:
    try:
        EngineConfig(model=model)  # refuses an empty name
        folder = local_model(default_model() if model is None else model)
        if folder is None:  # a report must not download a model
            return remark("model", f"{model} is no local folder; `serve` would ask the Hugging Face hub")
        config = read_model_config(folder)
    except (ConfigError, ImportError) as exc:
        return Finding("model", str(exc), False, "give a folder that is there and whole, of a supported model")
    quantized = f" ({config.quantization.name})" if config.quantization else ""
    text = f"{config.architecture}{quantized} in {folder}"
    if config.is_recurrent:
        text += f", {len(recurrent_parts(config.layer_states))} of {config.num_layers} layers with a recurrent state"
    if folder.is_file():  # one file holds everything
        return Finding("model", f"{text}: {config.description}")
    missing = [" or ".join(names) for names in (SAFETENSORS, ("tokenizer.json",)) if not _has_any(folder, names)]
    return Finding("model", f"{text}: no {', no '.join(missing)}" if missing else text, not missing, "fetch it again")


def _has_any(folder: Path, names: tuple[str, ...]) -> bool:
    return any((folder / name).exists() for name in names)
