"""ModelRunner: owns the model and its cache on one device; a Batch goes in, one RowOutput per row comes out.

A step has four stages, each in a file of its own:

    prepare   preparation.py      host      rows -> arrays (batch_arrays.py, samples.py) -> tensors on the device
    forward   forward_pass.py     device    tokens -> hidden states, by the model or by a CUDA graph of it
    sample    stages.py           device    hidden states -> logits -> tokens, under the masks of grammars
    collect   pending_outputs.py  host      tokens, logprobs -> one output per row; accepts drafts

`ModelRunner.run` takes a step through the stages and waits for its outputs. `AsyncRunner.launch` does not wait; the
stages are the same.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ...core.batch import Batch, Moves, RowOutput
from ...core.block_manager import CacheSpec
from ...device import stream_of
from ..models.config import ModelConfig
from ..models.kv_cache import KVCache
from ..models.memory_plan import MemoryPlan
from ..models.resolved_model import ResolvedModel
from ..models.state_slots import StateSpec
from ..sampling.sampler import Sampler
from .stages import Stages
from .transfer import DirectTransfer

if TYPE_CHECKING:
    from .async_runner import AsyncRunner


@dataclass(frozen=True)
class LoadedModel:
    """Facts about a loaded model."""

    resolved: ResolvedModel
    cache: CacheSpec
    memory: MemoryPlan | None = None  # rank 0's
    op_by_op: str | None = None  # on a CPU, the reason why the layers are not one native call
    inexact: str | None = "unknown"  # reason why the schedule may change bits; None: it never does

    @property
    def model_config(self) -> ModelConfig:
        """Shape of the model."""
        return self.resolved.model

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.resolved.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of plain weights and activations."""
        return self.resolved.dtype

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output, in tokens."""
        return self.resolved.config.max_model_len

    @property
    def states(self) -> StateSpec | None:
        """Slots of recurrent states; None: no layer is recurrent."""
        return None if self.memory is None else self.memory.states


class ModelRunner:
    """Runner of one model, loaded by `loading.load_runner`. Use it from one thread."""

    def __init__(self, model: Any, cache: KVCache, loaded: LoadedModel, *, ranks: Any = None) -> None:
        """`model` is a Decoder, or a ParallelModel over these `ranks`, which end with the runner."""
        device = loaded.device
        self.loaded = loaded
        self.ranks = ranks
        self.model = model
        self.cache = cache
        self._sampler, self._is_exact = Sampler(device), bool(loaded.resolved.config.exact)
        self.stages = Stages(
            model,
            cache,
            device=device,
            stream=stream_of(device),
            transfer=DirectTransfer(device),
            sampler=self._sampler,
            is_exact=self._is_exact,
            ranks=ranks,
        )

    def new_launcher(self, **limits: Any) -> "AsyncRunner":
        """Create the launcher of this model's steps. From now on `run` uses its stages, and so its graphs.

        `limits`: max_num_tokens, max_num_seqs and max_model_len of a step.
        """
        from .async_runner import AsyncRunner  # here: a server on a CPU has none

        device = self.loaded.device
        planner = self.cache.decode_planner(self.model.config.sliding_windows, self.loaded.dtype)
        limits |= {"sampler": self._sampler, "planner": planner, "is_exact": self._is_exact, "ranks": self.ranks}
        launcher = AsyncRunner(self.model, self.cache, stream_of(device), device=device, **limits)
        self.stages = launcher.stages
        return launcher

    def close(self) -> None:
        """End the other ranks, if there are some. No further step is taken."""
        if self.ranks is not None:
            self.ranks.end()

    @torch.inference_mode()
    def move(self, moves: Moves) -> None:
        """Copy the blocks that a step needs elsewhere, before the step runs."""
        self.cache.copy_blocks(**moves._asdict())

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[RowOutput]:
        """Compute the batch and sample. Rows that run again give equal outputs: they write the same cache slots."""
        stages = self.stages
        step = stages.preparation.prepare(batch)
        stages.forward_pass.run(step)
        stages.sampling_pass.run(step)
        return stages.collection.collect(step).wait()
