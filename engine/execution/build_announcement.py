"""Word of the CPU library's build before torch is imported, which takes seconds."""

from ...kernels.cpu import prebuilt
from ...kernels.cpu.compilation import announce_if_missing, build_progress
from ..config.host import may_have_gpu
from ..errors import ConfigError
from ..formats.checkpoint import local_model

__all__ = ["announce_build", "build_progress"]


def announce_build(device: str, model: str | None) -> None:
    """Announce the build if this processor will run a model that is on disk, and there is no library for it yet.

    In doubt, as with a GPU's driver or a model to fetch or to refuse, the build announces itself when it begins.
    """
    if device == "cpu" or (device == "auto" and not may_have_gpu()):
        try:
            is_on_disk = local_model(model) is not None
        except ConfigError:
            return
        if is_on_disk and prebuilt.find() is None:
            announce_if_missing()
