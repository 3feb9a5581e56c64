"""Ops of the native library, some of them compiled from changed sources."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from splitfuse.kernels.cpu import build, compilation


def patched_ops(
    folder: Path, stems: Sequence[str], edits: Mapping[str, tuple[str, str]] | None = None, *, flags: Sequence[str] = ()
) -> dict[str, Callable[..., None]]:
    """Compile these sources, after edits {file name: (old text, new text)}, and return all ops, theirs and the others.

    The others, and functions of other sources, are those of the library in the cache, which must have been built.
    """
    compiler, sources = compilation.find_compiler(), folder / "csrc"
    assert compiler is not None
    shutil.copytree(compilation.FOLDER, sources)
    for name, (old, new) in (edits or {}).items():
        text = (sources / name).read_text()
        assert text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}"
        (sources / name).write_text(text.replace(old, new))
    objects = [folder / f"{stem}.o" for stem in stems]
    for stem, target in zip(stems, objects, strict=True):
        source = sources / f"{stem}.cpp"
        options = [*compilation._flags(source), *compilation._NATIVE, *flags]
        command = [compiler, *options, "-c", str(source), "-o", str(target)]
        subprocess.run(command, check=True, capture_output=True)
    library = folder / "patched.so"
    whole = compilation.cache_folder() / compilation.library_name(compiler)
    linked = [compiler, "-shared", *map(str, [*objects, whole]), "-o", str(library)]
    subprocess.run(linked, check=True, capture_output=True)
    loaded = ctypes.CDLL(str(library))
    known = build._ops((sources / "arguments.h").read_text())
    own = {name: build._bound(loaded[name], fields) for name, _, fields in known if hasattr(loaded, name)}
    return {**(build.library() or {}), **own}
