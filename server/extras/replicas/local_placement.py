"""LocalPlacement: replicas as processes of this machine, each with its own GPU if there are GPUs."""

import os
import subprocess
from collections.abc import Sequence

from ....engine.config.host import num_usable_cores
from ....engine.errors import ConfigError
from .placement import name_of
from .server_process import ServerProcess

_HOST = "127.0.0.1"


class LocalPlacement:
    """Placement on this machine.

    `gpus`: the replicas' CUDA_VISIBLE_DEVICES, in the order of their numbers; () on a CPU.
    """

    def __init__(self, gpus: Sequence[str] = ()) -> None:
        self._gpus = gpus

    @classmethod
    def of_machine(cls, count: int, *, device: str, num_gpus_each: int = 1) -> "LocalPlacement":
        """Create the placement for `count` replicas on this `--device`. Raises ConfigError if there are fewer GPUs."""
        gpus = () if device == "cpu" else visible_gpus()
        if 0 < len(gpus) < count * num_gpus_each:
            each, most = "a GPU" if num_gpus_each == 1 else f"{num_gpus_each} GPUs", len(gpus) // num_gpus_each
            raise ConfigError(f"{count} replicas need {each} each, and {len(gpus)} can be used: --replicas {most}")
        return cls([",".join(gpus[first : first + num_gpus_each]) for first in range(0, len(gpus), num_gpus_each)])

    @property
    def has_gpus(self) -> bool:
        """True if replicas run on GPUs."""
        return bool(self._gpus)

    @property
    def num_cpus(self) -> int:
        """Cores that this process may use."""
        return num_usable_cores()

    async def start(self, number: int, config: str) -> ServerProcess:
        """Start a process. Raises OSError."""
        env = {"CUDA_VISIBLE_DEVICES": self._gpus[number]} if self._gpus else {}
        return await ServerProcess.start(name_of(number), config, host=_HOST, env=env)

    def close(self) -> None:
        """Do nothing: nothing is left to close."""


def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs that this process may use, in the form of CUDA_VISIBLE_DEVICES; () without a driver."""
    if (variable := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return tuple(gpu.strip() for gpu in variable.split(",") if gpu.strip())
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(str(number) for number, line in enumerate(listing.splitlines()) if line.startswith("GPU "))
