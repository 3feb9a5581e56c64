"""Two servers behind HAProxy: the compose file, HAProxy's own check of its file, agreement of names and tags."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from splitfuse.server.jobs.job import new_id
from splitfuse.server.settings import Settings

FOLDER = Path(__file__).parents[2] / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.balanced.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SERVERS = {"a": SERVICES["server-a"], "b": SERVICES["server-b"]}
HAPROXY = (FOLDER / "haproxy.cfg").read_text()


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_has_its_tag_its_address_and_time_to_drain(name):
    service = SERVERS[name]
    variables = service["environment"]
    assert {f"SPLITFUSE_{field}".upper() for field in Settings.__dataclass_fields__} >= {
        variable for variable in variables if variable.startswith("SPLITFUSE_")
    }
    assert variables["SPLITFUSE_ID_TAG"] == f"{name}-"
    assert variables["SPLITFUSE_RESULTS_URL"] == f"http://server-{name}:8000"
    assert f"server-{name}" in variables["SPLITFUSE_ALLOWED_HOSTS"]
    assert int(service["stop_grace_period"].removesuffix("s")) > Settings().drain_timeout + 5


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("path", ["/result/{}", "/result/{}/stream", "/v1/responses/resp_{}", "/v1/batches/batch_{}"])
def test_haproxy_knows_whose_an_id_is(name, path):
    asked = path.format(new_id("", f"{name}-"))
    rules = dict(re.findall(r"use-server (\w+) if \{ path_reg (\S+) \}", HAPROXY))
    assert set(rules) == set(SERVERS)
    assert [server for server, pattern in rules.items() if re.search(pattern, asked)] == [name]
    (has_id,) = re.findall(r"acl has_id path_reg (\S+)", HAPROXY)
    assert re.search(has_id, asked)


def test_every_backend_has_both_servers():
    for backend in HAPROXY.split("\nbackend ")[1:]:
        lines = re.findall(r"^ +server (\w+) \"\$\{SERVER_\w-([\w-]+):8000\}\"", backend.split("\nfrontend")[0], re.M)
        assert lines == [("a", "server-a"), ("b", "server-b")]


def test_a_stream_is_not_cut_off_between_two_pings():
    timeouts = dict(re.findall(r"timeout (client|server) +(\d+)s", HAPROXY))
    assert all(int(timeouts[side]) > 60 for side in ("client", "server"))  # ?wait= takes 60 s, pings come every 15


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy: apt-get install haproxy")
def test_haproxy_takes_the_file():
    done = subprocess.run(["haproxy", "-c", "-f", FOLDER / "haproxy.cfg"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_prometheus_scrapes_both_servers_and_haproxy():
    config = yaml.safe_load((FOLDER / "prometheus_balanced.yml").read_text())
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert targets == {"splitfuse": ["server-a:8000", "server-b:8000"], "haproxy": ["haproxy:8405"]}
    assert {target.partition(":")[0] for group in targets.values() for target in group} <= SERVICES.keys()
    (command,) = SERVICES["prometheus"]["command"]
    assert f'"$$METRICS_KEY" > {config["scrape_configs"][0]["authorization"]["credentials_file"]}' in command
    assert config["rule_files"] == ["prometheus_rules.yml"]
    assert any(volume.startswith("./prometheus_rules.yml:") for volume in SERVICES["prometheus"]["volumes"])
