"""Compile the CPU kernels for each class of processors: `python docker/kernel_libraries.py FOLDER`, a new folder.

`--machine aarch64` is for 64-bit Arm instead; elsewhere it needs its cross compiler (Debian: g++-aarch64-linux-gnu).
Does not import the package, which would need torch.
"""

import argparse
import importlib
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[1] / "kernels/cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--machine", choices=["x86_64", "aarch64"], default=platform.machine())
    arguments = parser.parse_args()
    compile_classes(arguments.folder, arguments.machine)


def compile_classes(folder: Path, machine: str, wanted: list[str] | None = None) -> None:
    """Compile the library of each of the machine's classes, or of those wanted, into a new folder."""
    folder.mkdir()
    sys.path.insert(0, str(KERNELS.parent))
    package = sys.modules["cpu"] = type(sys)("cpu")
    package.__path__ = [str(KERNELS)]
    compilation, prebuilt = (importlib.import_module(f"cpu.{name}") for name in ("compilation", "prebuilt"))
    prefix = "" if machine == platform.machine() else f"{machine}-linux-gnu-"  # of Debian's cross compilers
    compiler = shutil.which(f"{prefix}g++") if prefix else compilation.find_compiler()
    if compiler is None:
        sys.exit(f"needs a C++ compiler: {prefix}g++")
    for processors in prebuilt.CLASSES:
        if processors.machine == machine and (wanted is None or processors.name in wanted):
            with tempfile.TemporaryDirectory() as scratch:
                library = compilation.compile_library(compiler, Path(scratch), processors.options)
                subprocess.run([f"{prefix}strip", "--strip-unneeded", str(library)], check=True)
                shutil.copy(library, folder / prebuilt.file_name(processors))


if __name__ == "__main__":
    main()
