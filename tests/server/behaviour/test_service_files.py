"""The unit of systemd, and the files of nginx and Caddy: checked and run by these programs where they are installed."""

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from serving import ServerProcess

from splitfuse.client.hosts import free_port

DOCKER = Path(__file__).parents[3] / "docker"
UNIT = DOCKER / "systemd/splitfuse.service"
LONG = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True, "stream": True}


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if (program := shutil.which("systemd-analyze")) is None:
        pytest.skip("needs systemd-analyze")
    unit = tmp_path / UNIT.name  # the program must exist
    unit.write_text(UNIT.read_text().replace("/opt/splitfuse/bin/splitfuse", "/bin/true"))
    checked = subprocess.run([program, "verify", "--man=no", unit], capture_output=True, text=True, timeout=60)
    assert (checked.returncode, UNIT.name in checked.stderr) == (0, False), checked.stderr
    drain, stop = (int(re.search(rf"{name}[ =](\d+)", UNIT.read_text())[1]) for name in ("timeout", "TimeoutStopSec"))  # type: ignore[index]
    assert drain + 5 < stop


def test_a_server_tells_systemd_that_it_is_ready_and_ends(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        with ServerProcess("demo", env={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as server:
            assert manager.recv(100) == b"READY=1"
            assert httpx.get(f"{server.url}/ready").status_code == 200
            server.signal()
            assert manager.recv(100) == b"STOPPING=1"
            assert server.wait()[0] == 0


def program(name: str) -> str:
    """Return the path of a proxy, or skip; SPLITFUSE_TEST_PROXIES names a folder of programs."""
    folders = os.pathsep.join([os.environ.get("SPLITFUSE_TEST_PROXIES", ""), os.environ["PATH"], "/usr/sbin"])
    found = shutil.which(name, path=folders)
    if found is None:
        pytest.skip(f"needs {name}")
    return found


@contextmanager
def running(command: list[str], url: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for _ in range(100):
            try:
                httpx.get(f"{url}/health")
                break
            except httpx.HTTPError:
                assert process.poll() is None, process.communicate()
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.communicate(timeout=30)


@contextmanager
def nginx(tmp_path: Path, upstream: str) -> Iterator[str]:
    port = free_port("127.0.0.1")
    site = (DOCKER / "proxy/nginx.conf").read_text().replace("127.0.0.1:8000", upstream)
    site = site.replace("443 ssl", f"127.0.0.1:{port}")
    site = re.sub(r"ssl_certificate\w* .*", "", site)
    paths = "".join(
        f"{kind}_temp_path {tmp_path}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = tmp_path / "nginx.conf"
    config.write_text(
        f"daemon off; pid {tmp_path}/pid; error_log stderr; events {{}} http {{ access_log off; {paths} {site} }}"
    )
    arguments = [program("nginx"), "-p", str(tmp_path), "-c", str(config)]
    subprocess.run([*arguments, "-t"], check=True, capture_output=True)
    with running(arguments, f"http://127.0.0.1:{port}"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def caddy(tmp_path: Path, upstream: str) -> Iterator[str]:
    port = free_port("127.0.0.1")
    site = (DOCKER / "proxy/Caddyfile").read_text().replace("127.0.0.1:8000", upstream)
    config = tmp_path / "Caddyfile"
    config.write_text("{\n\tadmin off\n}\n" + site.replace("llm.example.com {", f"http://127.0.0.1:{port} {{"))
    arguments = ["--config", str(config), "--adapter", "caddyfile"]
    command = program("caddy")
    subprocess.run([command, "validate", *arguments], check=True, capture_output=True)
    with running([command, "run", *arguments], f"http://127.0.0.1:{port}"):
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("proxy", [nginx, caddy], ids=["nginx", "caddy"])
def test_streams_pages_and_large_bodies_pass_a_proxy(tmp_path: Path, proxy: object) -> None:
    name = proxy.__name__  # type: ignore[attr-defined]
    program(name)
    with ServerProcess("demo", "--max-body-bytes", "8MiB") as server:
        upstream = server.url.removeprefix("http://")
        with proxy(tmp_path, upstream) as url, httpx.Client(base_url=url, timeout=60) as client:  # type: ignore[operator]
            with client.stream("POST", "/generate", json=LONG) as response:
                chunks = list(response.iter_raw())
            assert response.status_code == 200
            assert len(chunks) > 20, "the words come as they are made"
            origin = {"Origin": url}
            assert client.get("/page/chat.js", headers=origin).status_code == 200, "the page works"
            large = client.post("/tokenize", json={"prompt": "a " * 2_000_000}, headers=origin)
            assert large.status_code in (200, 400), large.text[:200]
            assert client.post("/tokenize", content=b"x" * 9 * 2**20).status_code == 413
            assert client.get("/v1/models").json()["data"]
