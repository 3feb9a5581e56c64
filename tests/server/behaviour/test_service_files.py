"""The unit of systemd, the files of nginx and Caddy, and Prometheus's rules and the board's queries: checked and run by
these programs where they are installed.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from browser import chromium, watched_page
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
    """Return the path of a program, or skip; SPLITFUSE_TEST_PROXIES names a folder of programs."""
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
        process.communicate(timeout=120)


@contextmanager
def nginx(tmp_path: Path, upstream: str, site: str = (DOCKER / "proxy/nginx.conf").read_text()) -> Iterator[str]:
    port = free_port("127.0.0.1")
    site = site.replace("127.0.0.1:8000", upstream)
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


def test_the_page_behind_a_bare_nginx_says_what_the_proxy_lacks(tmp_path: Path) -> None:
    program("nginx")
    bare = "server { listen 443 ssl; location / { proxy_pass http://127.0.0.1:8000; } }"
    with ServerProcess("demo") as server, chromium() as browser:
        upstream = server.url.removeprefix("http://")
        with nginx(tmp_path, upstream, bare) as url, watched_page(browser, expected=("403",)) as page:
            asked(page, url)
            page.wait_for_selector("[role=alert]:has-text('proxy_set_header Host $http_host')")
        with nginx(tmp_path, upstream) as url, watched_page(browser) as page:
            asked(page, url)
            page.wait_for_selector(".assistant:not(.running) .stats")
            assert len(page.text_content(".assistant > .prose")) > 20


def asked(page: Any, url: str) -> None:
    page.goto(url)
    page.wait_for_function("() => document.getElementById('model').textContent")
    page.fill("#prompt", "Hello")
    page.keyboard.press("Enter")


def test_a_real_prometheus_takes_the_rules_and_answers_every_query_of_the_board(tmp_path: Path) -> None:
    """No panel is empty beside a server that has answered."""
    rules = DOCKER / "prometheus_rules.yml"
    assert subprocess.run([program("promtool"), "check", "rules", rules], check=False).returncode == 0
    panels = json.loads((DOCKER / "grafana/dashboards/splitfuse.json").read_text())["panels"]
    asked = [target["expr"].replace('"$model_name"', '".*"') for panel in panels for target in panel["targets"]]
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    command = [program("prometheus"), "--log.level=warn", f"--storage.tsdb.path={tmp_path}/data"]
    command += [f"--config.file={tmp_path}/prometheus.yml", f"--web.listen-address={url.removeprefix('http://')}"]
    with ServerProcess("demo") as server, httpx.Client(base_url=url, timeout=30) as client:
        config = yaml.safe_load((DOCKER / "prometheus.yml").read_text())
        config["global"]["scrape_interval"] = "1s"
        config["rule_files"] = [str(rules)]
        config["scrape_configs"][0]["static_configs"] = [{"targets": [server.url.removeprefix("http://")]}]
        del config["scrape_configs"][0]["authorization"]
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))

        def series(query: str) -> list[object]:
            answer = client.get("/api/v1/query", params={"query": query.replace("$__rate_interval", "30s")}).json()
            assert answer["status"] == "success", (query, answer)
            found: list[object] = answer["data"]["result"]
            return found

        with running(command, url):
            wait_for(lambda: client.get("/-/ready").is_success)
            wait_for(lambda: series("splitfuse:num_requests_running"))
            httpx.post(f"{server.url}/generate", json=LONG, timeout=60)
            wait_for(lambda: series("increase(splitfuse:request_success_total[30s]) > 0"))
            assert [query for query in asked if not series(query)] == []
            groups = client.get("/api/v1/rules").json()["data"]["groups"]
            assert [rule["lastError"] for rule in groups[0]["rules"] if rule.get("lastError")] == []


def wait_for(is_so: Callable[[], object]) -> None:
    for _ in range(600):
        if is_so():
            return
        time.sleep(0.1)
    raise AssertionError("it takes too long")
