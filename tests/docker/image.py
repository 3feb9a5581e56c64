"""Image: a built image, and the hardened command to run it with the tool that built it."""

import json
import os
import shlex
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

USER = 10001
_CONTAINER = "splitfuse-check"

# For buildah, which mounts an image but runs nothing as another user with a read-only root: a mount namespace in which
# the root except the volumes is read-only, and chroot.
_HARDENED = f"""
set -eu
root=$1 volumes=$2; shift 2
mount --bind "$root" "$root" && mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
for name in cache results; do mount --bind "$volumes/$name" "$root/$name"; done
exec chroot --userspec={USER}:{USER} "$root" "$@"
"""


@dataclass(frozen=True)
class Image:
    """Built image; `builder` is docker, podman or buildah."""

    builder: str
    name: str

    def num_bytes(self) -> int:
        """Return the bytes of the image's files."""
        if self.builder == "buildah":
            return int(subprocess.check_output(["du", "-sb", self._root], text=True).split()[0])
        return int(self._output("image", "inspect", "--format", "{{.Size}}", self.name))

    def file(self, path: str) -> str:
        """Return the text of a file in the image."""
        if self.builder == "buildah":
            return Path(self._root + path).read_text()
        return self._output("run", "--rm", "--entrypoint", "cat", self.name, path)

    def command(self, volumes: Path, *args: str, network: Literal["host", "none"] = "host") -> list[str]:
        """Return a command of `splitfuse ARGS` with a read-only root; /cache and /results are folders of `volumes`."""
        for name in ("cache", "results"):
            (volumes / name).mkdir()
            os.chown(volumes / name, USER, USER)
        if self.builder != "buildah":
            mounts = [f"--volume={volumes / name}:/{name}" for name in ("cache", "results")]
            hardened = ["--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", f"--network={network}", "--init", *mounts]
            return [self.builder, "run", "--rm", *hardened, self.name, *args]
        config = json.loads(self._output("inspect", "--type", "image", self.name))["OCIv1"]["config"]
        root = self._root
        inside = ["env", "-i", "-C", config["WorkingDir"], *config["Env"], *config["Entrypoint"], *args]
        namespaces = ["--mount"] if network == "host" else ["--mount", "--net"]
        return ["unshare", *namespaces, "sh", "-c", _HARDENED, "sh", root, str(volumes), *inside]

    @cached_property
    def _root(self) -> str:
        """Folder of buildah's one container of the image: with its driver vfs each is a copy, 1.6 GB."""
        return self._output("mount", self._output("from", "--pull-never", f"--name={_CONTAINER}", self.name))

    def close(self) -> None:
        """Remove what buildah mounted."""
        if "_root" in vars(self):
            self._output("rm", _CONTAINER)

    def _output(self, *args: str) -> str:
        done = subprocess.run([self.builder, *args], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{shlex.join([self.builder, *args])}: {done.stderr}"
        return done.stdout.strip()
