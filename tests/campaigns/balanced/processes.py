"""HAProxy and Prometheus of the distribution, with the configuration files of docker/, as processes on this machine."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from splitfuse.client.hosts import free_port

DOCKER = Path(__file__).parents[3] / "docker"


class Program:
    """Process that is ready when `url` answers 200; the `with` block ends it."""

    def __init__(self, command: Sequence[str], *, url: str, env: Mapping[str, str] | None = None) -> None:
        if shutil.which(command[0]) is None:
            raise SystemExit(f"{command[0]} is not installed: apt-get install {command[0]}")
        self._url = url
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._command, self._env = command, {**os.environ, **(env or {})}
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        nothing = subprocess.DEVNULL
        return subprocess.Popen(self._command, stdin=nothing, stdout=self._log, stderr=self._log, env=self._env)

    def kill(self) -> Self:
        """Kill the process, start it again and wait until it is ready."""
        self.process.kill()
        self.process.wait()
        self.process = self._started()
        return self.__enter__()

    def __enter__(self) -> Self:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if httpx.get(self._url, timeout=2, trust_env=False).status_code == 200:
                    return self
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
        self._log.seek(0)
        raise RuntimeError(f"{self.process.args!r} is not ready: {self._log.read()[-2000:]!r}")

    def __exit__(self, *exc_info: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()


class Haproxy(Program):
    """HAProxy with docker/haproxy.cfg before two servers on these ports."""

    def __init__(self, first: int, second: int) -> None:
        port, self.operations = free_port("127.0.0.1"), free_port("127.0.0.1")
        self.url = f"http://127.0.0.1:{port}"
        env = {
            "BIND": f"127.0.0.1:{port}",
            "BIND_OPERATIONS": f"127.0.0.1:{self.operations}",
            "SERVER_A": f"127.0.0.1:{first}",
            "SERVER_B": f"127.0.0.1:{second}",
        }
        command = ["haproxy", "-db", "-f", str(DOCKER / "haproxy.cfg")]
        super().__init__(command, url=f"http://127.0.0.1:{self.operations}/health", env=env)


class Prometheus(Program):
    """Prometheus with docker/prometheus_balanced.yml and these targets for the file's names."""

    def __init__(self, folder: Path, targets: Mapping[str, str]) -> None:
        config: dict[str, Any] = yaml.safe_load((DOCKER / "prometheus_balanced.yml").read_text())
        (folder / "metrics_key").write_text("none")
        shutil.copy(DOCKER / "prometheus_rules.yml", folder)
        config["global"] = {"scrape_interval": "1s"}
        for job in config["scrape_configs"]:
            if "authorization" in job:
                job["authorization"]["credentials_file"] = str(folder / "metrics_key")
            for static in job["static_configs"]:
                static["targets"] = [targets[name] for name in static["targets"]]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        port = free_port("127.0.0.1")
        self.url = f"http://127.0.0.1:{port}"
        flags = {
            "config.file": folder / "prometheus.yml",
            "storage.tsdb.path": folder / "data",
            "web.listen-address": f"127.0.0.1:{port}",
        }
        command = ["prometheus", *(f"--{name}={value}" for name, value in flags.items())]
        super().__init__(command, url=f"{self.url}/-/ready")

    def query(self, expression: str) -> dict[str, float]:
        """Return the value of every series by its `instance`."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}, timeout=10, trust_env=False)
        found = answer.json()["data"]["result"]
        return {series["metric"].get("instance", ""): float(series["value"][1]) for series in found}
