"""Kernels that a decode step of a shape launches, and the peak of device memory while it loads, without a GPU.

    python tests/gpu/launched.py qwen3-30b-a3b [--rows 1 8] [--context 1024]

Tensors are torch's meta tensors, whose sizes alone exist; launches are listed, and neither compiled nor run.
Prints one JSON object.
"""

import argparse
import json
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import paths  # noqa: F401
import torch
from compile_report import OfflineDriver
from end_to_end import ALL_SHAPES
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from splitfuse.engine import EngineConfig
from splitfuse.engine.config import ResolvedConfig
from splitfuse.engine.execution.models.config import ModelConfig
from splitfuse.engine.execution.models.forward_inputs import Bounds, Inputs
from splitfuse.engine.execution.models.kv_cache import KVCache, StatePool
from splitfuse.engine.execution.models.planned_weights import ShapeSource
from splitfuse.engine.execution.models.registry import read_model_config
from splitfuse.engine.execution.models.resolved_model import ResolvedModel, resolve_dtype
from splitfuse.engine.execution.runner.cuda_graphs import padding
from splitfuse.engine.execution.runner.state_arrays import padding_states
from splitfuse.engine.serving.loading import build_model
from splitfuse.kernels import ops
from splitfuse.kernels.cuda import attention_decode

META = torch.device("meta")


class MemoryCounter(TorchDispatchMode):
    """Bytes of the meta tensors that live, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = self.peak = 0
        self._storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.device == META:
                storage = leaf.untyped_storage()
                if storage._cdata not in self._storages:
                    self._storages.add(storage._cdata)
                    weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
                    self.num_bytes += storage.nbytes()
                    self.peak = max(self.peak, self.num_bytes)
        return out

    def _free(self, key: int, num_bytes: int) -> None:
        self._storages.discard(key)
        self.num_bytes -= num_bytes


def be_a_gpu() -> None:
    """Let meta tensors take a GPU's kernels in this process: an H100's or H200's."""
    driver.set_active(OfflineDriver(90))
    ops._BACKEND_OF_DEVICE["meta"] = "cuda"
    ops.decode_planner = attention_decode.decode_planner


def config_of(shape: dict[str, Any]) -> ModelConfig:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(shape))
        return read_model_config(Path(folder))


def loaded(shape: dict[str, Any], quantization: str | None = None) -> tuple[Any, MemoryCounter]:
    """Return a model with all of a GPU's packing, in the dtype that a GPU takes, and what loading it took."""
    config, counter = config_of(shape), MemoryCounter()
    dtype = resolve_dtype("auto", config, torch.device("cuda"))
    with counter, listed_launches():  # weights may be rounded by a kernel
        source = ShapeSource(None, dtype=dtype)
        facts = ResolvedConfig.of(EngineConfig(quantization=quantization), device="cuda", max_model_len=2048)
        model = build_model(ResolvedModel(facts, Path(), config, META, dtype, dtype), source)
    return model, counter


@contextmanager
def listed_launches() -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    """List (kernel, grid) of the block's launches instead of launching."""
    found: list[tuple[str, tuple[int, ...]]] = []

    def launcher(self: Any, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, **options: found.append((self.__name__.strip("_"), grid))

    with patch.object(JITFunction, "__getitem__", launcher):
        yield found


def launches_of(model: Any, dtype: torch.dtype, num_rows: int, context: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return (kernel, grid) of all launches of a decode step, with its logits."""
    config = model.config
    states = StatePool(2 * num_rows, dtype)
    cache = KVCache(config, num_blocks=64, block_size=16, dtype=dtype, device=META, states=states)
    planner = cache.decode_planner(config.sliding_windows, dtype)
    arrays: dict[str, Any] = {
        **padding(num_rows),
        **padding_states(num_rows),
        "block_tables": np.zeros((num_rows, -(-context // 16)), np.int32),
    }
    arrays |= {"seq_lens": np.full(num_rows, context, np.int32)}
    arrays |= planner(arrays["query_start_loc"], arrays["seq_lens"]) or {}
    fields = {name: torch.from_numpy(array).to(META) for name, array in arrays.items()}
    with listed_launches() as found:
        model.logits(model.forward(Inputs.of(fields, Bounds(num_rows, 1, context)), cache))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=ALL_SHAPES)
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--context", type=int, default=1024)
    options = parser.parse_args()
    be_a_gpu()
    model, memory = loaded(ALL_SHAPES[options.shape])
    found = {"dtype": str(model._dtype), "weights": memory.num_bytes, "peak": memory.peak, "steps": {}}
    for num_rows in options.rows:
        launches = launches_of(model, model._dtype, num_rows, options.context)
        names = Counter(name for name, _ in launches)
        grids = {name: sorted({grid for other, grid in launches if other == name}) for name in names}
        found["steps"][num_rows] = {"launches": names, "grids": grids}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
