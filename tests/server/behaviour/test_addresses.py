"""Addresses of a server: a Unix socket, TLS, and a path below which a proxy shows it."""

import shutil
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest
from serving import ServerProcess, run_cli

BODY = {"prompt": "Once", "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a certificate for 127.0.0.1 and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    made = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key))
    subprocess.run([*made, "-out", str(cert), *names], check=True, capture_output=True)
    return cert, key


def test_a_server_speaks_https(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    with ServerProcess("demo", "--ssl-certfile", str(cert), "--ssl-keyfile", str(key)) as server:
        url = server.banner.partition("  API       ")[2].partition("/generate")[0]
        assert url.startswith("https://127.0.0.1:")
        with httpx.Client(base_url=url, verify=ssl.create_default_context(cafile=str(cert)), timeout=60) as client:
            assert client.get("/ready").status_code == 200
            with client.stream("POST", "/generate", json={**BODY, "stream": True}) as response:
                assert "event: done" in response.read().decode()
        with pytest.raises(httpx.HTTPError):
            httpx.get(url.replace("https:", "http:") + "/ready")
        server.signal()
        code, errors = server.wait()
    assert (code, errors) == (0, "")


def test_a_wrong_certificate_is_one_line(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert, _ = certificate
    for flags, message in (
        (("--ssl-certfile", str(cert)), "no certificate with its key in PEM"),
        (("--ssl-certfile", str(tmp_path / "none.pem")), "No such file"),
        (("--ssl-keyfile", str(cert)), "give --ssl-certfile, too"),
        (("--root-path", "llm"), "must be as /llm"),
        (("--uds", str(tmp_path / "none" / "s")), "cannot listen on it"),
    ):
        done = run_cli("serve", "demo", "--port", "0", *flags)
        assert done.returncode == 2, flags
        assert message in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_server_listens_on_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    for _ in range(2):  # the second one finds what the first one has left
        with ServerProcess("demo", "--uds", str(path)) as server:
            assert f"curl -N --unix-socket {path} http://localhost/generate" in server.banner
            assert path.stat().st_mode & 0o777 == 0o660
            with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=60) as client:
                assert client.post("http://localhost/v1/completions", json=BODY).status_code == 200
            taken = run_cli("serve", "demo", "--uds", str(path))
            assert (taken.returncode, "another server listens on it" in taken.stderr) == (2, True)
            server.process.kill()


def test_a_proxy_may_keep_or_strip_the_root_path() -> None:
    with ServerProcess("demo", "--root-path", "/llm") as server, httpx.Client(base_url=server.url) as client:
        assert f"  API       {server.url}/llm/generate" in server.banner
        for path in ("", "/llm"):
            answer = client.post(f"{path}/generate", json=BODY)
            assert answer.headers["location"] == answer.json()["result_url"]
            assert answer.json()["result_url"].startswith("/llm/result/")
            kept = client.get(answer.json()["result_url"] + "?wait=30")
            assert kept.json()["status"] == "completed"
            assert client.get(f"{path}/v1/models").status_code == 200
            assert client.get(f"{path}/openapi.json").json()["servers"] == [{"url": "/llm"}]
        assert client.get("/llmm/v1/models").status_code == 404
