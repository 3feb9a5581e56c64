"""DeviceInfo: properties of a GPU that launchers need, and launch options. Knows no kernel."""

import threading
from functools import lru_cache
from typing import NamedTuple

import torch


class DeviceInfo(NamedTuple):
    capability: int  # 90 for compute capability 9.0
    num_multiprocessors: int
    shared_memory: int  # most bytes for one program
    is_interpreted: bool = False  # True for Triton's interpreter on the CPU
    is_amd: bool = False  # compiled only: `unsupported_gpu` refuses it

    @property
    def has_fp8_matmul(self) -> bool:
        """True if the tensor cores take e4m3."""
        return self.capability >= 89 and not self.is_interpreted

    @property
    def has_strong_cores(self) -> bool:
        """True if the tensor cores take 64 rows at once: wgmma (9.0) or tcgen05 (10.x, 11.0); 12.x has neither."""
        return 90 <= self.capability < 120

    @property
    def fp8_kind(self) -> int:
        """Way in which kernels widen e4m3: 1, the GPU converts; 2, by the bits."""
        return 1 if self.capability >= 89 else 2


class Exactness(threading.local):
    """Choice of a thread's kernels, which `ops.be_exact` makes.

    If on, a row's sums have one order, whatever the batch: one kernel for any number of rows, keys split at fixed
    positions.
    """

    is_on = False


EXACT = Exactness()
# If False, a kernel is set up only after the previous one has ended.
USES_DEPENDENT_LAUNCH = True
# Compute capabilities on which tests/gpu/calls/exact.py found equal bits in exact mode: on an H100, in bfloat16,
# float16 and float32, on an H200 in int4, int8 and fp8, 40 prompts under 6 schedules. Otherwise 55 to 100 % of the
# answers changed.
MEASURED_EXACT: frozenset[int] = frozenset({90})
H100 = DeviceInfo(90, 132, 232_448)
OLDEST_CAPABILITY = 80  # before Ampere: no bfloat16, no asynchronous copies, 64 KiB for prefill's 72
SMALLEST_SHARED_MEMORY = 101_376  # compute capability 8.6, 8.9 and 12.0 (CUDA programming guide, table of limits)


def unsupported_gpu() -> str | None:
    """Return the reason why the kernels cannot run on the GPU that torch calls CUDA; None if they can."""
    name = torch.cuda.get_device_name(0)
    if torch.version.hip is not None:
        return f"{name} is an AMD GPU: the kernels have never run on one"
    major, minor = torch.cuda.get_device_capability(0)
    if 10 * major + minor < OLDEST_CAPABILITY:
        return f"{name} has compute capability {major}.{minor}: the kernels need 8.0 (Ampere) or newer"
    return None


@lru_cache
def device_info(device: torch.device) -> DeviceInfo:
    """Return the properties of a device's GPU; an H100's for Triton's interpreter, which runs on the CPU."""
    if device.type != "cuda":
        return H100._replace(is_interpreted=True)
    properties = torch.cuda.get_device_properties(device)
    shared_memory = getattr(properties, "shared_memory_per_block_optin", SMALLEST_SHARED_MEMORY)
    capability = 10 * properties.major + properties.minor
    return DeviceInfo(capability, properties.multi_processor_count, shared_memory)


def inexact_reason(device: torch.device) -> str | None:
    """Implement `ops.inexact_reason`."""
    if not EXACT.is_on:
        return "kernels for a GPU add in an order that depends on the batch; --exact asks for one order"
    capability = device_info(device).capability
    if capability not in MEASURED_EXACT:
        return f"one order of sums by design, but not measured yet on compute capability {capability / 10}"
    return None


def dependent_launch(gpu: DeviceInfo) -> dict[str, bool]:
    """Return the options for setting a kernel up while the previous one ends: programmatic dependent launch, from 9.0.

    The kernel calls `dependent.wait_for_previous` first, in every program and before any read, write or early return.
    """
    is_on = USES_DEPENDENT_LAUNCH and gpu.capability >= 90 and not gpu.is_interpreted
    return {"DEPENDENT": True, "launch_pdl": True} if is_on else {"DEPENDENT": False}
