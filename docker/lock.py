"""Write docker/requirements.txt: exact versions and hashes of all that the image installs. Needs uv: `make lock`.

torch, Triton and CUDA's packages stay out: the CPU build of the same version of torch comes from another index.
"""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docker/requirements.txt"
EXTRAS = ("postgres",)
HEADER = (
    "# Written by `make lock` from pyproject.toml and constraints.txt: what the image has beside torch and Triton.\n"
)
_OF_TORCH = re.compile(r"(?:torch|triton|cuda-\w+|nvidia-[\w-]+)==")


def main() -> None:
    command = ["uv", "pip", "compile", "--no-config", "--quiet", "--universal", "--python-version=3.11"]
    command += ["--generate-hashes", "--no-annotate", "--no-header", "--constraints=constraints.txt", "pyproject.toml"]
    command += [f"--extra={extra}" for extra in EXTRAS]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    entries = re.split(r"\n(?! )", found.strip())
    TARGET.write_text(HEADER + "\n".join(entry for entry in entries if not _OF_TORCH.match(entry)) + "\n")


if __name__ == "__main__":
    main()
