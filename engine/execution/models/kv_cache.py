"""KVCache: memory of all that layers keep: keys and values in blocks, recurrent states in slots."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ....kernels import ops
from ...device import to_device
from ...errors import ConfigError
from .config import ModelConfig
from .layer_states import CompositeState, LatentKV, LayerState, NoState, PagedKV, RecurrentState, SharedKV
from .memory_plan import kv_bytes_per_token

if TYPE_CHECKING:
    from ...core.batch import Moves
    from .host_blocks import BlockPairs, HostBlocks

LayerView = ops.CacheView | ops.StateView | tuple[ops.CacheView | ops.StateView, ...] | None


class StatePool(NamedTuple):
    """Slots for recurrent states: each holds the states of one sequence in all layers, and its last drafts."""

    num_slots: int = 0
    dtype: torch.dtype = torch.float32  # the model's: of convolutions and drafts; matrix states are float32
    max_drafts: int = 0
    num_host: int = 0  # slots on the host


class KVCache:
    """Views of what each layer keeps, in the order of the layers: CacheView, StateView, a tuple of them, or None.

    K and V are [num_blocks, num_kv_heads, block_size, head_dim]: one block of a head is contiguous. In int8 the last
    dimension is wider, because a block holds its tokens' scales too (kernels/int8_cache.py).
    """

    def __init__(
        self,
        model: ModelConfig,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        num_host_blocks: int = 0,
        states: StatePool | None = None,
    ) -> None:
        self.block_size = block_size
        self._device = device
        self._num_blocks, self._dtype, self._states = num_blocks, dtype, states or StatePool()
        self.block_tensors: list[torch.Tensor] = []  # keys and values
        self.state_tensors: list[torch.Tensor] = []
        try:
            views: list[LayerView] = []
            for state in model.kept_states:
                views.append(views[state.layer] if isinstance(state, SharedKV) else self._view(state))
            self.layers = views * (len(model.layer_states) // len(views))
            self._host_blocks = _host_blocks(self.block_tensors, num_host_blocks) if num_host_blocks else None
            states_as_bytes = [tensor.flatten(1).view(torch.uint8) for tensor in self.state_tensors]
            has_host_states = self._host_blocks is not None and self._states.num_host > 0
            self._host_states = _host_blocks(states_as_bytes, self._states.num_host) if has_host_states else None
        except RuntimeError as exc:  # base class of torch's out-of-memory errors
            block_bytes = block_size * kv_bytes_per_token(model, dtype)
            raise ConfigError(
                f"KV cache: {num_blocks} blocks and {num_host_blocks} on the host, of {block_bytes} bytes each, "
                "cannot be allocated; set --kv-cache-memory-bytes or --swap-space lower"
            ) from exc

    def _view(self, state: LayerState) -> LayerView:
        match state:
            case CompositeState(parts):
                return tuple(map(self._part, parts))
            case NoState() | SharedKV():
                return None
        return self._part(state)

    def _part(self, part: PagedKV | LatentKV | RecurrentState) -> ops.CacheView | ops.StateView:
        if isinstance(part, LatentKV):
            width = ops.token_width(part.rank + part.rope_dim, self._dtype)
            latents = self._empty(self._dtype, self._num_blocks, 1, self.block_size, width)
            self.block_tensors.append(latents)
            return ops.CacheView(latents, latents)
        if isinstance(part, PagedKV):
            shape = (
                self._num_blocks, part.num_kv_heads, self.block_size, ops.token_width(part.head_dim, self._dtype)
            )  # fmt: skip
            keys, values = self._empty(self._dtype, *shape), self._empty(self._dtype, *shape)
            self.block_tensors += [keys, values]
            return ops.CacheView(keys, values)
        num_slots, dtype, max_drafts, _ = self._states
        view = ops.StateView(
            self._empty(dtype, num_slots, part.conv_width - 1, part.conv_channels),
            self._empty(torch.float32, num_slots, *part.state_shape) if part.state_shape else None,
            self._empty(dtype, num_slots, max_drafts, part.conv_channels + part.num_gates) if max_drafts else None,
        )
        self.state_tensors += [tensor for tensor in view if tensor is not None]
        return view

    def _empty(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """Allocate without zeroing: kernels never read unwritten slots, and untouched pages cost no memory."""
        return torch.empty(shape, dtype=dtype, device=self._device)

    def copy_blocks(
        self, *, swap_out: "BlockPairs", swap_in: "BlockPairs", copies: "BlockPairs", beside: "Moves | None" = None
    ) -> None:
        """Copy blocks (from, to) before a step: out to the host, in from the host, within the device.

        `beside`: copies of state slots.

        On a GPU the copies are only queued.
        """
        if self._host_blocks is not None:
            self._host_blocks.swap_out(swap_out)
            self._host_blocks.swap_in(swap_in)
        if copies:
            sources, targets = to_device(torch.tensor(copies).T.contiguous(), self._device)
            ops.copy_blocks(self.block_tensors, sources, targets)
        if self._host_states is not None and beside is not None:
            self._host_states.swap_out(beside.swap_out)
            self._host_states.swap_in(beside.swap_in)

    def decode_planner(self, sliding_windows: Iterable[int], dtype: torch.dtype) -> Any:
        """Return ops.decode_planner's maker of work lists for layers with these windows and queries of `dtype`."""
        views = [view for part in self.layers for view in (part if type(part) is tuple else (part,))]
        caches = [view for view in views if isinstance(view, ops.CacheView)]
        keys = [view.keys for view in caches if view.keys.shape == view.values.shape]  # latents have no list
        shapes = dict.fromkeys((tensor.shape[1], tensor.shape[3]) for tensor in keys)
        layers = [(window, *shape) for window in dict.fromkeys(sliding_windows) for shape in shapes]
        return ops.decode_planner(self._device, layers, dtype=dtype, cache_dtype=keys[0].dtype if keys else dtype)

    def memory(self) -> list[torch.Tensor]:
        """Return every tensor of blocks and of states, on the device and on the host."""
        hosts = [host for host in (self._host_blocks, self._host_states) if host is not None]
        return self.block_tensors + self.state_tensors + [piece for host in hosts for piece in host.pieces]

    def measure_swap(self) -> float | None:
        """Measure the seconds to copy one block one way; None without swap space. Overwrites some blocks."""
        if self._host_blocks is None:
            return None
        count = min(32, len(self.block_tensors[0]), self._host_blocks.num_blocks)
        pairs = [(block, block) for block in range(count)]
        self._host_blocks.swap_out(pairs)  # touches the pages for the first time
        ops.synchronize(self._device)
        start = time.perf_counter()
        self._host_blocks.swap_in(pairs)
        ops.synchronize(self._device)
        return (time.perf_counter() - start) / count


def _host_blocks(caches: list[torch.Tensor], num_blocks: int) -> "HostBlocks":
    from .host_blocks import HostBlocks  # here: only a cache with swap space has some

    return HostBlocks(caches, num_blocks)
