"""A PostgreSQL server of the distribution, on a socket in a temporary folder."""

import itertools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


class PostgresServer:
    """PostgreSQL server that runs as an unprivileged user, for it refuses to run as root."""

    def __init__(self) -> None:
        program_of_the_distribution("initdb")
        self._folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # short: a socket's path has 107 characters
        if os.geteuid() == 0:
            shutil.chown(self._folder, "nobody", "nogroup")
        self._numbers = itertools.count(1)
        self._run("initdb", "-D", f"{self._folder}/data", "--auth", "trust", "--username", "splitfuse", "--no-sync")

    def start(self) -> None:
        """Return when it takes connections."""
        options = f"-k {self._folder} -c listen_addresses=''"
        data = ("-D", f"{self._folder}/data", "-l", f"{self._folder}/log")
        self._run("pg_ctl", "start", "--wait", *data, "-o", options)

    def stop(self, *, mode: str = "fast") -> None:
        """Cut all connections and return when it has ended."""
        self._run("pg_ctl", "stop", "--wait", "-D", f"{self._folder}/data", "-m", mode)

    def database(self) -> str:
        """Return the URL of a new, empty database."""
        name = f"test{next(self._numbers)}"
        self._run("createdb", "-h", str(self._folder), "-U", "splitfuse", name)
        return f"postgresql://splitfuse@/{name}?host={self._folder}"

    def remove(self) -> None:
        """Stop it and remove all that it has written."""
        self.stop(mode="immediate")
        shutil.rmtree(self._folder)

    def _run(self, program: str, *args: str) -> None:
        user = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups") if os.geteuid() == 0 else ()
        command = [*user, program_of_the_distribution(program), *args]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, cwd=self._folder, env={"LC_ALL": "C"}
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)


def program_of_the_distribution(name: str) -> str:
    """Return the path of a program of PostgreSQL. Skips the test where there is none."""
    found = [*sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True), shutil.which(name)]
    if found[0] is None:
        pytest.skip("needs a PostgreSQL server: apt-get install postgresql")
    return str(found[0])
