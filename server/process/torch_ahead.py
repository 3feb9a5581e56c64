"""Links torch's largest library while the server's own modules are imported: 0.2 s of its start. Imports no torch."""

import contextlib
import ctypes
import importlib.util
import os
import threading
from collections.abc import Iterator
from pathlib import Path

_LIBRARY = "lib/libtorch_cpu.so"  # Linux's name of it


@contextlib.contextmanager
def linking_torch() -> Iterator[None]:
    """Until this ends at the latest a thread does it, which leaves the GIL to others, as torch's import does not."""
    thread = threading.Thread(target=_link, name="splitfuse-link")
    thread.start()
    try:
        yield
    finally:
        thread.join()  # the process may end now, and what is half linked with it


def _link() -> None:
    package = importlib.util.find_spec("torch")
    folders = (package and package.submodule_search_locations) or ()
    for library in (Path(folder, _LIBRARY) for folder in folders):
        if library.exists():
            # As a C function: ctypes.CDLL(library) would keep the GIL. A failure is for torch's own import to tell.
            dlopen = ctypes.CDLL(None).dlopen
            dlopen.argtypes, dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
            dlopen(bytes(library), os.RTLD_NOW)
