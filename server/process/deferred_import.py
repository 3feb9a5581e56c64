"""A part of torch that serving does not use is imported when it may be needed, not while a server starts.

torch's meta kernels tell the shapes of results without computing them, for torch.compile and torch.export: 0.24 s of
the 0.92 that importing torch takes. Both import further parts of torch, and before any of these the kernels come in.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

DEFERRED = "torch._meta_registrations"


def defer_meta_kernels() -> None:
    """For a process of ours, before it imports torch."""
    if "torch" not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder, Loader):
    """While torch imports itself the module is an empty one; the next import of a part of torch replaces it."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith("torch."):
            return None
        # Were this ever missing, nothing would be deferred.
        if getattr(sys.modules["torch"].__spec__, "_initializing", False):
            return ModuleSpec(name, self) if name == DEFERRED else None
        sys.meta_path.remove(self)
        sys.modules.pop(DEFERRED, None)
        importlib.import_module(DEFERRED)
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """The usual kind of module."""

    def exec_module(self, module: ModuleType) -> None:
        """Leave it empty."""
