"""ParallelModel: rank 0's share of a model, which has the other ranks make the same calls.

The interface is Decoder's. The other ranks' part of a step begins with a message and ends with the last sum. If rank 0
fails in between, the ranks are out of step: that is a RankLostError, and no row is at fault.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ...config import ResolvedConfig
from ...execution.models.config import ModelConfig
from ...execution.models.forward_inputs import Arrays, Inputs
from ...execution.models.kv_cache import KVCache
from ...execution.models.tensor_parallel import TensorParallel
from .cores import bind
from .group import Group, check_gpus

if TYPE_CHECKING:
    from .rank_processes import RankProcesses

# The ranks' group by their device.
_BACKENDS = {"cpu": "memory", "cuda": "nccl"}


class Setup(NamedTuple):
    """First message to the ranks: the model to load."""

    config: ResolvedConfig
    folder: Path
    num_threads: int


def start_ranks(setup: Setup) -> "RankProcesses | None":
    """Start the other ranks, which begin to load. Return None without ranks and slices. Raises ConfigError."""
    config = setup.config
    size, num_slices = config.tensor_parallel_size, config.tensor_parallel_slices or config.tensor_parallel_size
    if num_slices == 1:
        return None
    if config.device == "cuda":
        check_gpus(size)
    from .rank_processes import RankProcesses  # its imports are rarely needed

    in_order = bool(config.exact) or num_slices > size
    ranks = RankProcesses(Group(_BACKENDS[config.device], size, num_slices, in_order))
    ranks.tell(*setup)
    if config.device == "cpu":
        bind(0, size)
    return ranks


class RankModel:
    """One rank's share of a model. Of the logits, rank 0 alone has the whole vocabulary."""

    def __init__(self, model: Any, parallel: TensorParallel) -> None:
        self._model = model
        self._group = parallel.group
        self.config: ModelConfig = model.config

    def padding(self, num_tokens: int) -> Arrays:
        """Like Decoder.padding."""
        fields: Arrays = self._model.padding(num_tokens)
        return fields

    @property
    def plan(self) -> Any:
        """Decoder.plan of this rank; the other ranks' plans are alike."""
        return self._model.plan

    def forward(self, inputs: Inputs, kv_cache: KVCache) -> Tensor:
        """Like Decoder.forward."""
        hidden: Tensor = self._model.forward(inputs, kv_cache)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Like Decoder.logits, for rank 0's hidden states."""
        logits: Tensor = self._model.logits(self._group.broadcast(hidden))
        return logits


class ParallelModel(RankModel):
    """Model of all ranks, for one thread: calls and messages to the ranks have one order."""

    def __init__(self, model: Any, ranks: "RankProcesses") -> None:
        """Wait until the other ranks have loaded, too. Raises RankLostError."""
        super().__init__(model, ranks.parallel)
        self._ranks = ranks
        ranks.connect()

    def logits(self, hidden: Tensor) -> Tensor:
        """Like Decoder.logits, but raises RankLostError."""
        with self._ranks.step("logits", tuple(hidden.shape), hidden.dtype):
            return super().logits(hidden)


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
        ranks.tell("make_cache", num_blocks, num_host_blocks, dtype)
        own = own_config(model, ranks.parallel)
        super().__init__(own, num_blocks=num_blocks, num_host_blocks=num_host_blocks, dtype=dtype, **options)
        ranks.answers()

    def copy_blocks(self, **moves: Any) -> None:
        self._ranks.tell("copy_blocks", moves)
        super().copy_blocks(**moves)


def own_config(model: ModelConfig, parallel: TensorParallel) -> ModelConfig:
    """Return the config with the KV heads of one rank."""
    heads = parallel.kv_heads(model.num_kv_heads)
    return model.with_kv_heads(heads.stop - heads.start)


def cached_config(model: ModelConfig, parallel: TensorParallel, device: torch.device) -> ModelConfig:
    """Return the config with the KV heads that are in one memory: on a CPU all ranks', some of them repeated."""
    own = own_config(model, parallel)
    return own if device.type == "cuda" else model.with_kv_heads(own.num_kv_heads * parallel.size)
