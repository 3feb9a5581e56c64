"""What the launchers must know of the GPU they launch on. Knows no kernel."""

from functools import lru_cache
from typing import NamedTuple

import torch


class DeviceInfo(NamedTuple):
    capability: int  # 90 for compute capability 9.0
    num_multiprocessors: int
    shared_memory: int  # bytes that one program may have


H100 = DeviceInfo(90, 132, 232_448)
SMALLEST_SHARED_MEMORY = 101_376  # compute capability 8.6, 8.9 and 12.0 (CUDA programming guide, table of limits)


@lru_cache
def device_info(device: torch.device) -> DeviceInfo:
    """The GPU behind a device; for Triton's interpreter, which runs on the CPU, an H100."""
    if device.type != "cuda":
        return H100
    properties = torch.cuda.get_device_properties(device)
    shared_memory = getattr(properties, "shared_memory_per_block_optin", SMALLEST_SHARED_MEMORY)
    capability = 10 * properties.major + properties.minor
    return DeviceInfo(capability, properties.multi_processor_count, shared_memory)
