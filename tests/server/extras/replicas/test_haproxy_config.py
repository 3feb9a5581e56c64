"""The file that HAProxy gets: whose an id is, what is tried again, and that HAProxy takes it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from splitfuse.server.extras.replicas.haproxy_config import HaproxyConfig
from splitfuse.server.extras.replicas.placement import Address
from splitfuse.server.http.connection import KEEP_ALIVE_S
from splitfuse.server.jobs.job import new_id

TAGS = {f"r{number}": f"r{number}-" for number in range(11)}


def config(*, has_shared_results: bool = False, folder: str = "/tmp/x") -> HaproxyConfig:
    return HaproxyConfig(
        tags=TAGS, folder=folder, listener_fd=3, max_connections=4096, has_shared_results=has_shared_results
    )


def backend(text: str, name: str) -> str:
    return text.split(f"\nbackend {name}\n")[1].split("\nbackend ")[0]


@pytest.mark.parametrize("name", TAGS)
@pytest.mark.parametrize("path", ["/result/{}", "/result/{}/stream", "/v1/responses/resp_{}", "/v1/files/file-{}"])
def test_an_id_belongs_to_one_replica(name, path):
    text = config().text({})
    asked = path.format(new_id("", TAGS[name]))
    rules = re.findall(r"use-server (\w+) if \{ path_reg (\S+) \}", text)
    assert [server for server, pattern in rules if re.search(pattern, asked)] == [name]
    (has_id,) = re.findall(r"use_backend ids if \{ path_reg (\S+) \}", text)
    assert re.search(has_id, asked)


def test_only_replicas_with_an_address_take_requests():
    text = config().text({"r1": Address("10.0.0.7", 4000)})
    servers = re.findall(r"server (\w+) (\S+).*?( disabled)?$", backend(text, "any"), re.M)
    assert [server for server in servers if not server[2]] == [("r1", "10.0.0.7:4000", "")]
    assert len(servers) == len(TAGS)


def test_without_a_shared_store_no_other_replica_answers_for_an_id():
    alone, shared = (backend(config(has_shared_results=has_shared).text({}), "ids") for has_shared in (False, True))
    assert "no option redispatch" in alone
    assert alone.count("no-check") == len(TAGS)
    assert "uri /health" in shared
    assert "no-check" not in shared


def test_a_key_leads_to_one_replica_only_where_the_store_does_not():
    assert "use_backend keys if { req.hdr(Idempotency-Key) -m found }" in config().text({})
    assert "Idempotency-Key" not in config(has_shared_results=True).text({})


def test_a_stream_is_not_cut_off_between_two_pings():
    timeouts = dict(re.findall(r"timeout (client|server) (\d+)s", config().text({})))
    assert all(int(timeouts[side]) > 60 for side in ("client", "server"))  # ?wait= takes 60 s, a ping comes after 15


def test_an_idle_connection_outlives_those_of_clients():
    """Behind HAProxy as at the server itself."""
    for text in (config().text({}), (Path(__file__).parents[4] / "docker/haproxy.cfg").read_text()):
        assert re.findall(r"timeout http-keep-alive (\d+)s", text) == [str(KEEP_ALIVE_S)]


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy: apt-get install haproxy")
@pytest.mark.parametrize("has_shared_results", [False, True])
def test_haproxy_takes_it(tmp_path: Path, has_shared_results):
    text = config(has_shared_results=has_shared_results, folder=str(tmp_path)).text({"r0": Address("127.0.0.1", 9)})
    file = tmp_path / "haproxy.cfg"
    file.write_text(text.replace("bind fd@3", "bind 127.0.0.1:9"))
    done = subprocess.run(["haproxy", "-c", "-f", file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
