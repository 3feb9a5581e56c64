"""The `oco` command against a scripted server: `python tests/clients/opencommit_cli.py BASE_URL`."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import follow, key, main, model_of, said

SUBJECT = "fix(sky): make it blue"
IDENTITY = {f"GIT_{role}_{part}": "me" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, self._name = url, model_of(url)

    def openai(self) -> None:
        self._commit("openai", f"{self._url}/v1")

    def ollama(self) -> None:
        self._commit("ollama", self._url)

    def llamacpp(self) -> None:
        self._commit("llamacpp", self._url)

    def _commit(self, provider: str, where: str) -> None:
        """The model reads the change, and its answer becomes the commit's subject."""
        follow(self._url, SUBJECT, marker="colour.txt", needs_tools=False)
        with tempfile.TemporaryDirectory(prefix="splitfuse-") as folder:
            Path(folder, "colour.txt").write_text("The sky is blue.\n")
            env = {"HOME": folder, "PATH": os.environ["PATH"], "NO_PROXY": "127.0.0.1", **IDENTITY}
            env |= {"OCO_AI_PROVIDER": provider, "OCO_API_KEY": key(), "OCO_API_URL": where, "OCO_MODEL": self._name}
            env |= {"OCO_API_CUSTOM_HEADERS": f'{{"Authorization": "Bearer {key()}"}}', "OCO_GITPUSH": "false"}
            for words in (["git", "init", "-q"], ["git", "add", "colour.txt"], ["oco", "--yes"]):
                done = subprocess.run(
                    words, cwd=folder, env=env, input="", capture_output=True, text=True, timeout=120, check=False
                )
                assert done.returncode == 0, done.stdout + done.stderr
            log = subprocess.run(["git", "log", "--format=%s"], cwd=folder, capture_output=True, text=True, check=True)
        assert log.stdout == f"{SUBJECT}\n"
        assert "+The sky is blue." in said(self._url)[-1]


if __name__ == "__main__":
    sys.exit(main(Checks, "opencommit"))
