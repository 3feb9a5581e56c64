"""Built image, run like a deployment: uid 10001, a read-only root, volumes for /cache and /results.

`make image-check` builds the image and runs these tests.
"""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from .image import USER, Image

IMAGE = Image(os.environ.get("SPLITFUSE_TEST_BUILDER", "docker"), os.environ.get("SPLITFUSE_TEST_IMAGE", ""))
pytestmark = pytest.mark.skipif(not IMAGE.name, reason="needs a built image: make image-check")


class Container:
    """Server in the image."""

    def __init__(self, volumes: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.volumes = volumes
        flags = ["--host", "127.0.0.1", "--port", str(port), "--results", "/results/results.db"]
        command = IMAGE.command(volumes, "serve", "demo", *flags)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)

    def until_ready(self) -> None:
        """Wait until the server is ready."""
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if self.client.get("/ready").status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.2)
        self.process.kill()
        raise AssertionError(self.process.communicate()[0])


@pytest.fixture(scope="module", autouse=True)
def image() -> Iterator[Image]:
    yield IMAGE
    IMAGE.close()


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    volumes = tmp_path_factory.mktemp("volumes")
    container = Container(volumes)
    container.until_ready()
    yield container
    container.process.kill()
    container.process.communicate()
    container.client.close()


def test_it_is_not_larger_than_it_was() -> None:
    size = IMAGE.num_bytes()
    print(f"{IMAGE.name}: {size / 1e9:.2f} GB")
    assert size < 1.75e9


def test_its_bill_of_materials_names_what_is_in_it() -> None:
    sbom = json.loads(IMAGE.file("/opt/venv/sbom.cdx.json"))
    assert sbom["bomFormat"] == "CycloneDX"
    names = {component["name"].lower() for component in sbom["components"]}
    assert {"torch", "transformers", "fastapi", "uvicorn", "psycopg"} <= names
    assert not {"pip", "cyclonedx-bom"} & names


def test_it_answers(container: Container) -> None:
    assert container.client.get("/health").status_code == 200
    answer = container.client.post("/v1/completions", json={"prompt": "Once upon a time", "max_tokens": 8}).json()
    assert answer["usage"]["completion_tokens"] == 8


def test_it_writes_on_its_volumes_alone_as_its_own_user(container: Container) -> None:
    folder = container.volumes
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.stat().st_uid for path in written} == {USER}
    assert (folder / "results/results.db").is_file()
    assert not list((folder / "cache").rglob("*.so")), "the kernels come with the image"


def test_it_has_kernels_for_this_processor_and_no_compiler(tmp_path: Path) -> None:
    report = subprocess.run(IMAGE.command(tmp_path, "doctor"), capture_output=True, text=True, check=False).stdout
    words = " ".join(report.split())
    assert "which came with the package, and loaded" in words
    assert "C compiler ok none" in words


def test_it_needs_no_network(tmp_path: Path) -> None:
    command = IMAGE.command(tmp_path, "generate", "demo", "-p", "Once upon a time", "-n", "8", network="none")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), done.stderr


def test_sigterm_lets_what_runs_finish(container: Container) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True}
    seq_id = container.client.post("/generate", json=body).json()["seq_id"]
    container.process.send_signal(signal.SIGTERM)
    result = container.client.get(f"/result/{seq_id}?wait=60").json()
    assert (result["status"], len(result["token_ids"])) == ("completed", 200)
    out, _ = container.process.communicate(timeout=60)
    assert container.process.returncode == 0, out
    assert "Read-only file system" not in out
