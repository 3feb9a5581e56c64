"""Settings that must precede the import of torch, and the choice of tests: options, `sampled` and `thorough`."""

import gc
import math
import os
import random
import signal
import sys
from collections import defaultdict
from importlib.machinery import ModuleSpec

import hypothesis
import pytest

# Tiny models: a second thread only adds barriers, which cost milliseconds beside another busy process.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Nothing here comes from the hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# A command without a model would serve a real one where its wheel is installed.
os.environ.setdefault("SPLITFUSE_MODEL", "demo")
os.environ.setdefault("SPLITFUSE_RUNTIME_DIR", "/dev/null/nowhere")  # else `chat` could find the server of another test


# A shell starts background processes with SIGINT ignored, nohup with SIGHUP ignored, and every server of a test
# would inherit that.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-torch", action="store_true", help="make an import of torch or transformers an error")
    parser.addoption("--core-alone", action="store_true", help="block all of splitfuse but engine/core and its base")
    parser.addoption("--max-seeds", type=int, help="run only the first so many seeds of a random test")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until pytest_collection_finish
    # By default an example fails that takes 0.2 s of wall time, which any may take beside other busy processes.
    hypothesis.settings.register_profile(
        "patient",
        max_examples=config.getoption("--max-seeds") or (100 if "SPLITFUSE_TEST_ALL" in os.environ else 40),
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("patient")
    if config.getoption("--no-torch"):
        sys.meta_path.insert(0, _NoTorch())
    if config.getoption("--core-alone"):
        os.environ["SPLITFUSE_TEST_CORE_ALONE"] = "1"
        sys.meta_path.insert(0, _CoreAlone())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    extra: set[pytest.Item] = set()
    if (most := config.getoption("--max-seeds")) is not None:
        extra |= {item for item in items if isinstance(item, pytest.Function) and _seed_index(item) >= most}
    if "SPLITFUSE_TEST_ALL" not in os.environ and not any("::" in argument for argument in config.args):
        extra |= _not_sampled(items) | {item for item in items if item.get_closest_marker("thorough")}
    config.hook.pytest_deselected(items=list(extra))
    items[:] = [item for item in items if item not in extra]
    if hasattr(config, "workerinput"):
        items.sort(key=_starts_late)


def pytest_collection_finish() -> None:
    """Collect garbage of tests alone: what is loaded by now stays, and is millions of objects."""
    gc.freeze()
    gc.enable()


# Folders whose files take more than a few seconds.
_LONG = {"behaviour", "docker", "replicas", "cuda", "lora", "pooling_model", "process", "weight_updates"}


def _starts_late(item: pytest.Item) -> bool:
    """True if the file of a test may start last: a long file that starts last leaves the others idle."""
    return not _LONG & set(item.path.parts)


def _not_sampled(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return all but one case in n of every test marked sampled(n), equal in every run."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    extra: set[pytest.Item] = set()
    for name, each in cases.items():
        if (mark := each[0].get_closest_marker("sampled")) is not None:
            count = math.ceil(len(each) / mark.args[0])
            extra |= set(each) - set(random.Random(name).sample(each, count))
    return extra


def _seed_index(item: pytest.Function) -> int:
    return item.callspec.indices.get("seed", 0) if hasattr(item, "callspec") else 0


class _NoTorch:
    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name in ("torch", "transformers"):
            raise ImportError(f"`make fast` runs without {name}: import it in a fixture, or take the file off its list")
        return None


class _CoreAlone:
    """Finder that refuses every module of splitfuse outside the core's floor, and what such modules import."""

    FLOOR = ("core", "config", "errors", "checks", "extension")
    FOREIGN = ("torch", "numpy", "transformers", "tokenizers", "llguidance", "pydantic", "fastapi", "httpx")

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        top, *parts = name.split(".")
        is_ours = top == "splitfuse" and parts and (parts[0] != "engine" or (parts[1:2] and parts[1] not in self.FLOOR))
        if is_ours or top in self.FOREIGN:
            raise ModuleNotFoundError(f"the core runs without {name}", name=name)
        return None
