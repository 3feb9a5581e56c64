"""Layer states: what each layer of a model keeps of the tokens before the next one. Sizes only, no tensors.

A family says so in `Decoder.layer_states`; KVCache has a view for each. A new kind, such as a
layer that shares another one's keys and values, is one more class here and one more view there.
"""

from collections.abc import Iterable, Iterator
from math import prod
from typing import NamedTuple


class PagedKV(NamedTuple):
    """Keys and values of every token, in the cache's blocks."""

    num_kv_heads: int
    head_dim: int


class LatentKV(NamedTuple):
    """Latent of every token and a key that all heads share, side by side in the cache's blocks; no values."""

    rank: int
    rope_dim: int


class RecurrentState(NamedTuple):
    """State of fixed size for each sequence: a convolution's last inputs, and perhaps a matrix for each head."""

    conv_channels: int
    conv_width: int  # taps of the convolution, which keeps one input fewer
    state_shape: tuple[int, ...] = ()  # float32, such as (heads, dk, dv); empty: the convolution is all
    num_gates: int = 0  # numbers that a drafted token needs beside its input of the convolution

    def num_bytes(self, itemsize: int, max_drafts: int) -> int:
        """Return the bytes of one slot, with convolution and drafts in numbers of `itemsize` bytes."""
        kept = (self.conv_width - 1) * self.conv_channels + max_drafts * (self.conv_channels + self.num_gates)
        return kept * itemsize + (4 * prod(self.state_shape) if self.state_shape else 0)


class SharedKV(NamedTuple):
    """Reader of the keys and values that an earlier layer wrote in the same step."""

    layer: int


class NoState(NamedTuple):
    """Layer that sees one token alone, such as an MLP."""


class CompositeState(NamedTuple):
    """Parts side by side in one layer, such as attention and Mamba2. The layer gets a tuple of their views."""

    parts: tuple[PagedKV | RecurrentState, ...]


LayerState = PagedKV | LatentKV | RecurrentState | SharedKV | NoState | CompositeState


def paged_parts(states: Iterable[LayerState]) -> list[PagedKV | LatentKV]:
    """Return the paged caches of all layers."""
    return [part for part in _parts(states) if isinstance(part, PagedKV | LatentKV)]


def recurrent_parts(states: Iterable[LayerState]) -> list[RecurrentState]:
    """Return the recurrent states of all layers."""
    return [part for part in _parts(states) if isinstance(part, RecurrentState)]


def _parts(states: Iterable[LayerState]) -> Iterator[LayerState]:
    for state in states:
        if isinstance(state, CompositeState):
            yield from state.parts
        else:
            yield state
