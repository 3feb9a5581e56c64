"""ParallelModel: rank 0's share of a model, which has the other ranks make the same calls.

The interface is Decoder's. The other ranks' part of a step begins with a message and ends with the last sum. If rank 0
fails in between, the ranks are out of step: that is a RankLostError, and no row is at fault.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ....kernels.ops import RaggedBatch
from ...config import EngineConfig
from ...errors import ConfigError
from ...execution.models.config import ModelConfig
from ...execution.models.forward_inputs import Inputs
from ...execution.models.kv_cache import KVCache
from ...execution.models.tensor_parallel import TensorParallel
from .cores import bind

if TYPE_CHECKING:
    from .rank_processes import RankProcesses


class Setup(NamedTuple):
    """First message to the ranks: the model to load."""

    config: EngineConfig
    folder: Path
    device: torch.device
    dtype: torch.dtype
    max_model_len: int
    num_threads: int


def start_ranks(setup: Setup) -> "RankProcesses | None":
    """Start the other ranks, which begin to load. Return None without ranks and slices. Raises ConfigError."""
    config = setup.config
    num_slices = config.tensor_parallel_slices or config.tensor_parallel_size
    if num_slices == 1:
        return None
    if setup.device.type != "cpu":
        raise ConfigError("tensor parallelism is built for --device cpu only so far; leave it out")
    from .rank_processes import RankProcesses  # its imports are rarely needed

    ranks = RankProcesses(size=config.tensor_parallel_size, num_slices=num_slices)
    ranks.tell(*setup)
    bind(0, config.tensor_parallel_size)
    return ranks


class ParallelModel:
    """Model of all ranks, for one thread: calls and messages to the ranks have one order."""

    def __init__(self, model: Any, ranks: "RankProcesses") -> None:
        """Wait until the other ranks have loaded, too. Raises RankLostError."""
        self._model = model
        self._ranks = ranks
        self.config: ModelConfig = model.config
        ranks.wait_ready()

    @property
    def plan(self) -> Any:
        """Decoder.plan of rank 0; the other ranks' plans are alike."""
        return self._model.plan

    def forward(self, inputs: Inputs, kv_cache: KVCache) -> Tensor:
        """Like Decoder.forward, but raises RankLostError."""
        with self._in_step("forward", *packed(inputs)):
            hidden: Tensor = self._model.forward(inputs, kv_cache)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Like Decoder.logits, but for adjacent rows of `forward`'s last result, and raises RankLostError."""
        with self._in_step("logits", hidden.storage_offset() // hidden.shape[1], len(hidden)):
            logits: Tensor = self._model.logits(hidden)
        return logits

    @contextmanager
    def _in_step(self, *message: Any) -> Iterator[None]:
        self._ranks.tell(*message)
        try:
            yield
        except Exception as exc:
            raise self._ranks.lost(f"rank 0 failed within a step ({type(exc).__name__}: {exc})") from exc
        self._ranks.check()


class ParallelCache(KVCache):
    """KVCache of rank 0's share; the other ranks copy blocks whenever rank 0 does."""

    def __init__(
        self,
        model: ModelConfig,
        *,
        ranks: "RankProcesses",
        num_blocks: int,
        num_host_blocks: int,
        dtype: torch.dtype,
        **options: Any,
    ) -> None:
        """Create the caches of all ranks. `model` is the whole model's config. Raises ConfigError."""
        self._ranks = ranks
        ranks.tell(num_blocks, num_host_blocks, dtype)
        own = own_config(model, ranks.parallel)
        super().__init__(own, num_blocks=num_blocks, num_host_blocks=num_host_blocks, dtype=dtype, **options)
        ranks.wait_ready()

    def copy_blocks(self, **moves: Any) -> None:
        self._ranks.tell("copy_blocks", moves)
        super().copy_blocks(**moves)


def own_config(model: ModelConfig, parallel: TensorParallel) -> ModelConfig:
    """Return the config with the KV heads of one rank."""
    heads = parallel.kv_heads(model.num_kv_heads)
    return model.with_kv_heads(heads.stop - heads.start)


def cached_config(model: ModelConfig, parallel: TensorParallel) -> ModelConfig:
    """Return the config with the KV heads of all ranks together, some of which may be repeated."""
    return model.with_kv_heads(own_config(model, parallel).num_kv_heads * parallel.size)


def packed(inputs: Inputs) -> list[Any]:
    """Flatten Inputs for a message: arrays, because sending them takes a tenth of the time of tensors."""
    flat = (*inputs._replace(ragged=None), *inputs.ragged)  # type: ignore[arg-type]
    return [field.numpy() if isinstance(field, Tensor) else field for field in flat]


def unpacked(fields: Sequence[Any]) -> Inputs:
    """Rebuild Inputs from the fields of `packed`."""
    tensors: list[Any] = [torch.from_numpy(field) if hasattr(field, "dtype") else field for field in fields]
    count = len(Inputs._fields)
    return Inputs(*tensors[:count])._replace(ragged=RaggedBatch(*tensors[count:]))
