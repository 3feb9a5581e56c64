"""Links torch's largest library while the server's own modules are imported: 0.2 s of its start. Imports no torch."""

import ctypes
import importlib.util
import os
import threading
from pathlib import Path

_LIBRARY = "lib/libtorch_cpu.so"  # Linux's name of it


def start_linking_torch() -> threading.Thread:
    """The thread that does it. It leaves the GIL to others, as torch's import does not."""
    thread = threading.Thread(target=_link, name="splitfuse-link")  # no daemon: what is half linked must not be left so
    thread.start()
    return thread


def _link() -> None:
    package = importlib.util.find_spec("torch")
    folders = (package and package.submodule_search_locations) or ()
    for library in (Path(folder, _LIBRARY) for folder in folders):
        if library.exists():
            # As a C function: ctypes.CDLL(library) would keep the GIL. A failure is for torch's own import to tell.
            dlopen = ctypes.CDLL(None).dlopen
            dlopen.argtypes, dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
            dlopen(bytes(library), os.RTLD_NOW)
