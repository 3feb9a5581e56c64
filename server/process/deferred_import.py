"""Deferred import of torch's meta kernels, which serving does not use.

Meta kernels compute the shapes of results without computing the results, for torch.compile and torch.export. Importing
them takes 0.24 s of the 0.92 that torch takes. Both users import further parts of torch, and before any such part the
kernels are imported.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

DEFERRED = "torch._meta_registrations"


def defer_meta_kernels() -> None:
    """Defer the kernels in a process of ours. Call this before it imports torch."""
    if "torch" not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder, Loader):
    """Import hook.

    While torch imports itself the module is an empty one; the next import of a part of torch replaces it.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith("torch."):
            return None
        # Without this attribute nothing would be deferred.
        if getattr(sys.modules["torch"].__spec__, "_initializing", False):
            return ModuleSpec(name, self) if name == DEFERRED else None
        sys.meta_path.remove(self)
        sys.modules.pop(DEFERRED, None)
        importlib.import_module(DEFERRED)
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None: the default kind of module."""

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module empty."""
