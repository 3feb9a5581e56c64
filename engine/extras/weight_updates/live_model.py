"""LiveModel: a served model whose weights change while it serves. Knows no event loop.

    load or build, in any thread       steps go on with the old weights
    take, between two steps            the decoder becomes the new one; every request computes its tokens again

The new weights are read, checked, packed and planned before `take`, so a fault changes nothing, and steps wait for a
change of pointers alone. Both models are in memory meanwhile. After `restart` requests compute all their tokens again.
Memory is given back to the system while its addresses stay valid.
"""

import contextlib
import ctypes
import gc
import mmap
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...config.host import available_memory
from ...core.engine_core import EngineCore
from ...core.preemption_costs import Prices
from ...core.scheduler import Scheduler
from ...errors import ConfigError, InvalidRequestError
from ...execution.models.config import ModelConfig
from ...execution.models.fingerprint import fingerprint
from ...execution.models.planned_weights import WeightLayout, planned_weight_bytes
from ...execution.models.registry import read_model_config
from ...formats.weights import WeightSource
from ...language.workers.heap import return_freed_memory
from ...serving.loading import build_model

if TYPE_CHECKING:
    from ...serving.async_engine import AsyncEngine

import torch

from ....kernels.ops import QuantizedWeight


class TensorSource:
    """WeightSource of named tensors, by checkpoint name. Tensors that are taken are copies."""

    def __init__(self, tensors: Iterable[tuple[str, Tensor]], *, dtype: torch.dtype) -> None:
        self.tensors = dict(tensors)
        self._dtype = dtype
        self._taken: set[str] = set()

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ConfigError(f"no tensor {name!r} in the update; give all weights, by their checkpoint names")
        if tuple(tensor.shape) != shape:
            raise ConfigError(f"{name} has shape {list(tensor.shape)}, but the served model needs {list(shape)}")
        if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
            raise ConfigError(f"{name} is {tensor.dtype}; give float32, bfloat16 or float16")
        self._taken.add(name)
        return tensor.detach().to("cpu", self._dtype, copy=True)

    def take_quantized(self, name: str, shape: tuple[int, ...]) -> QuantizedWeight | None:
        return None

    def has(self, name: str) -> bool:
        return name in self.tensors

    def unread(self) -> list[str]:
        return sorted(self.tensors.keys() - self._taken)


class FiniteSource:
    """WeightSource that refuses values that are not finite. Packed values are finite if their scales are."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self.has, self.unread = source.has, source.unread

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._source.take(name, shape)
        if not tensor.isfinite().all():
            raise ConfigError(f"{name} has values that are not finite (NaN or infinity), so the update is refused")
        return tensor

    def take_quantized(self, name: str, shape: tuple[int, ...]) -> QuantizedWeight | None:
        return self._source.take_quantized(name, shape)


# Prices of a preemption that was no choice.
NO_CHOICE = Prices(0.0, 0.0)


def restart(scheduler: Scheduler) -> None:
    """Preempt all requests by recompute, and empty the prefix cache. No step may be in flight.

    Output tokens stay. Prompt logprobs that were not complete begin again.
    """
    assert not scheduler.num_steps_in_flight, "a step in flight uses the blocks"
    now, blocks = time.monotonic(), scheduler.blocks
    for request in list(scheduler.running):
        scheduler.observer.preempted(request, now, is_swapped=False, prices=NO_CHOICE, gave_way=False)
        scheduler.preempt(request, is_swapped=False)
    for request in scheduler.waiting:
        blocks.release(request)  # it may have blocks on the host
        if not request.num_output_tokens:
            request.num_read_tokens = 0
    if blocks.cache is not None:
        for block in list(blocks.cache.blocks):
            blocks.cache.forget(block)


def discard(tensors: Iterable[Tensor]) -> None:
    """Give back the whole pages of these tensors on a CPU. Their contents are lost; the next write takes pages again.

    Native plans hold the addresses, so nothing has to be recorded again.
    """
    with contextlib.suppress(AttributeError):  # a C library without madvise: the memory stays
        madvise = ctypes.CDLL(None).madvise
        for tensor in tensors:
            start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
            num_bytes = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
            if num_bytes > 0:
                madvise(ctypes.c_void_p(start), ctypes.c_size_t(num_bytes), mmap.MADV_DONTNEED)


# Fields in which an update's config.json may differ from the served model's.
_FREE = {"quantization", "dtype", "eos_token_ids", "description", "hf_config", "max_position_embeddings"}
MODES = ("keep", "wait", "abort")  # what becomes of running requests, in vLLM's words
# Levels of sleep: without the cache; without the cache and the weights.
LEVELS = (1, 2)


@dataclass(frozen=True)
class NewWeights:
    """Weights that are ready to be taken."""

    decoder: Any
    path: Path | None  # folder or GGUF file from which they can be read again
    fingerprint: str


class LiveModel:
    """Weights of one engine: their updates, and their absence while the model sleeps."""

    def __init__(self, engine: "AsyncEngine") -> None:
        """Raise InvalidRequestError where weights cannot change."""
        config, runner = engine.config, engine.runner
        if runner.loaded.device.type != "cpu":
            raise InvalidRequestError("weights can change and models can sleep on --device cpu only so far")
        if runner.ranks is not None:
            raise InvalidRequestError("weights cannot change with --tensor-parallel-size or slices so far")
        if getattr(config, "enable_lora", False):
            raise InvalidRequestError("weights cannot change and models cannot sleep with --enable-lora so far")
        self.sleep_level = 0  # 0: awake
        self._engine, self._config, self._runner, self._loaded = engine, config, runner, runner.loaded
        self._load_format = config.load_format

    @property
    def has_weights(self) -> bool:
        """True unless they were given back."""
        return self.sleep_level < 2

    def load(self, path: Path) -> NewWeights:
        """Read weights from a folder of safetensors, or from a GGUF file. Raises ConfigError; nothing has changed."""
        if getattr(self._config, "record", None):
            raise ConfigError("--record cannot record a change of weights; start without it")
        config = self._config_of(path)
        self._check_memory(path, config)
        return self._read(path, config, load_format="auto")

    def build(self, tensors: Iterable[tuple[str, Tensor]]) -> NewWeights:
        """Copy weights from named tensors. Raises ConfigError; nothing has changed."""
        if getattr(self._config, "record", None):
            raise ConfigError("--record cannot record a change of weights; start without it")
        source = TensorSource(tensors, dtype=self._loaded.dtype)
        config = replace(self._loaded.model_config, quantization=None)
        return NewWeights(self._decoder(source, config), None, self._fingerprint(source.tensors))

    def take(self, weights: NewWeights, core: EngineCore) -> int:
        """Change to these weights, and return their version. No step may be in flight.

        Every unfinished request computes all its tokens again, so no token follows from two versions' keys and values.
        """
        self._runner.model.replace_weights(weights.decoder)
        self._load_format = "auto"
        self.sleep_level = min(self.sleep_level, 1)
        restart(core.scheduler)
        self._engine.take_weights(weights.path, weights.fingerprint)
        return self._engine.weights_version

    def sleep(self, level: int, core: EngineCore) -> None:
        """Give the cache's memory back to the system, at level 2 the weights' too. No step may be in flight.

        Weights that came as tensors have to be updated before the model wakes up. Raises InvalidRequestError.
        """
        if level not in LEVELS:
            raise InvalidRequestError(f"level must be 1 or 2, not {level!r}", param="level")
        restart(core.scheduler)
        discard(self._runner.cache.memory())
        if level == 2 and self.has_weights:
            self._runner.model.replace_weights(None)
        self.sleep_level = max(level, self.sleep_level)
        gc.collect()
        return_freed_memory()

    def restored(self) -> NewWeights | None:
        """Read the weights that were given back; None if they are there. Raises ConfigError."""
        if self.has_weights:
            return None
        if (path := self._engine.weights_path) is None:
            raise ConfigError("the weights came as tensors and were given back; update them before waking up")
        return self._read(path, self._config_of(path), load_format=self._load_format)

    def wake_up(self, weights: NewWeights | None, *, is_whole: bool = True) -> None:
        """End the sleep with the weights of `restored`, unless a part is missing. No step may be in flight."""
        if weights is not None:
            self._runner.model.replace_weights(weights.decoder)
            self.sleep_level = 1
        if is_whole and self.has_weights:
            self.sleep_level = 0

    def _read(self, path: Path, config: ModelConfig, *, load_format: str) -> NewWeights:
        resolved = self._loaded.resolved._replace(folder=path, model=config)
        with resolved.weights(load_format=load_format) as weights:
            decoder = self._decoder(weights, config)
        return NewWeights(decoder, path, self._fingerprint(path))

    def _fingerprint(self, weights: Path | Mapping[str, Tensor]) -> str:
        return fingerprint(weights, self._config, dtype=self._loaded.dtype)

    def _decoder(self, source: WeightSource, config: ModelConfig) -> Any:
        """Build a decoder, and record its plan over the cache that is there."""
        decoder = build_model(self._loaded.resolved._replace(model=config), FiniteSource(source))
        decoder.plan.refusal(self._runner.cache)
        return decoder

    def _config_of(self, path: Path) -> ModelConfig:
        """Return the served config, with the quantization of these files. Raises ConfigError for another model's."""
        served = self._loaded.model_config
        if path.is_dir() and not (path / "config.json").exists():
            return replace(served, quantization=None)
        theirs = read_model_config(path)
        for name in (field.name for field in fields(ModelConfig) if field.name not in _FREE):
            here, there = (repr(getattr(config, name)) for config in (served, theirs))  # ropes have no equality
            if here != there:
                raise ConfigError(f"{path} is another model: its {name} is {there[:80]}, not {here[:80]}")
        return replace(served, quantization=theirs.quantization)

    def _check_memory(self, path: Path, config: ModelConfig) -> None:
        layout = WeightLayout(dtype=self._loaded.dtype, quantization=self._config.quantization, is_gpu=False)
        needed = planned_weight_bytes(path, config, layout, max_model_len=self._loaded.max_model_len)
        if needed > (free := available_memory()):
            raise ConfigError(
                f"new weights take {needed:,} bytes beside the old ones, and {free:,} are free; sleep first"
            )
