"""Weights of the form scale · (u - zero), and integers packed into words, for several formats."""

from collections.abc import Mapping
from math import gcd
from typing import Any

import torch
from torch import Tensor

from ....kernels.ops import QuantizedWeight
from ...errors import ConfigError

SCALE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def one_of(fields: Mapping[str, Any], name: str, known: tuple[Any, ...], default: Any = None) -> Any:
    """Return the value under `name`, or `default` if it is missing or null. Raises ConfigError if it is not known."""
    value = fields.get(name)
    value = default if value is None else value
    # Compare types, too: True == 1 and 4.0 == 4.
    if not any(type(value) is type(choice) and value == choice for choice in known):
        raise ConfigError(f"{name} {value!r:.100} is not known; known: {', '.join(map(str, known))}")
    return value


def group_size(fields: Mapping[str, Any], default: int | None = None) -> int | None:
    """Return the number of inputs that share a scale; None if all do (-1). Raises ConfigError."""
    size = fields.get("group_size")
    size = default if size is None else size
    if type(size) is not int or not (size == -1 or size > 0):
        raise ConfigError(f"group_size must be a positive integer, or -1, not {size!r:.100}")
    return None if size == -1 else size


def in_groups(size: int | None) -> str:
    """Return the end of a format's name, for people."""
    return "" if size is None else f" in groups of {size}"


def num_groups(num_inputs: int, size: int | None, *, name: str) -> int:
    """Return the number of groups of a linear's inputs. Raises ConfigError if groups do not divide the inputs."""
    size = num_inputs if size is None else min(size, num_inputs)
    if num_inputs % size:
        raise ConfigError(f"{name}: groups of {size} do not divide {num_inputs} inputs; fetch the checkpoint again")
    return num_inputs // size


def unpack(words: Tensor, bits: int) -> Tensor:
    """Unpack int32 [R, W] → uint8 [R, W · 32 / bits], the lowest bits of a word first."""
    packed = words.reshape(-1).view(torch.uint8).view(len(words), -1)
    return packed if bits == 8 else torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)


def affine(
    values: Tensor, zeros: Tensor | None, scales: Tensor, *, bits: int, order: Tensor | None = None
) -> QuantizedWeight:
    """Return scale · (u - zero) with u [N, K] uint8, scales and zeros [G, N] uint8; zeros default to 2^(bits - 1).

    Exact in float32: 8 bits times a scale of float16 or bfloat16 fit, and so does the sum.
    """
    middle = 1 << bits - 1
    if zeros is None or (zeros == middle).all():
        return QuantizedWeight((values - middle).view(torch.int8), storable_scales(scales), None, bits, order=order)
    return QuantizedWeight(values, storable_scales(scales), -scales.float() * zeros, bits, order=order)


def storable_scales(scales: Tensor) -> Tensor:
    """Return scales in a dtype of QuantizedWeight: float16 unchanged, every other dtype as float32."""
    return scales if scales.dtype == torch.float16 else scales.float()


def block_scales(scales: Tensor, shape: tuple[int, int], block: tuple[int, int]) -> Tensor:
    """Spread scales of blocks [⌈N / rows⌉, ⌈K / columns⌉] of a weight [N, K] → [G, N] of G groups that divide K."""
    num_outputs, num_inputs = shape
    rows, columns = min(block[0], num_outputs), min(block[1], num_inputs)
    size = gcd(columns, num_inputs)
    wide = storable_scales(scales).repeat_interleave(rows, dim=0)[:num_outputs]
    return wide.repeat_interleave(columns // size, dim=1)[:, : num_inputs // size].T.contiguous()


def act_order(g_idx: Tensor, groups: int, *, name: str) -> Tensor | None:
    """Return the inputs sorted by group, [K] int64 (act-order); None if they are sorted already.

    g_idx [K]: each input's group. One number for all inputs means no order: some writers leave 0 or -1. Raises
    ConfigError if the groups are not of one size.
    """
    order = g_idx.long().argsort(stable=True)
    num_inputs = len(order)
    expected = torch.arange(num_inputs, device=order.device) // (num_inputs // groups)
    if (g_idx == g_idx[0]).all() or torch.equal(g_idx.long(), expected):
        return None
    if not torch.equal(g_idx.long()[order], expected):
        raise ConfigError(f"{name}: g_idx does not give {groups} groups of one size; fetch the checkpoint again")
    return order
