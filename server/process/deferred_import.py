"""Deferred import of torch's meta kernels, which serving does not use.

Meta kernels compute the shapes of results without computing the results, for torch.compile and torch.export. Importing
them takes 0.24 s of the 0.92 that torch takes. Both users import further parts of torch, and before any such part the
kernels are imported. The trick is torch's inside, so it holds for the versions that the tests have run with.
"""

import importlib
import re
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

DEFERRED = "torch._meta_registrations"
TESTED = frozenset({"2.13.0"})  # versions of torch with which test_deferred_import.py and serve have run


def defer_meta_kernels() -> None:
    """Defer the kernels in a process of ours if torch is a tested version. Call this before it imports torch."""
    is_deferred = any(isinstance(finder, _Finder) for finder in sys.meta_path)
    if "torch" not in sys.modules and not is_deferred and _torch_version() in TESTED:
        sys.meta_path.insert(0, _Finder())


def _torch_version() -> str:
    """Return the version, such as 2.13.0, without an import of torch; empty if it is not found."""
    spec = find_spec("torch")
    if spec is None:
        return ""
    try:
        text = Path(spec.origin or "").with_name("version").with_suffix(".py").read_text("utf-8")
    except (OSError, ValueError):
        return ""
    match = re.search(r"__version__ = '([\d.]+)", text)
    return match[1] if match else ""


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
