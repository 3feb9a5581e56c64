"""Config file of a replica: the settings of all, its own tag, and keys, wherever they came from."""

from pathlib import Path

import pytest
import yaml

from splitfuse.engine.errors import ConfigError
from splitfuse.server.commands.settings_sources import resolve
from splitfuse.server.extras.replicas.replica_settings import check_replicas, config_of, tags_of
from splitfuse.server.settings import Settings


def read(text: str, folder: Path) -> Settings:
    """Read a config file like a replica does."""
    file = folder / "config"
    file.write_text(text)
    return resolve({"config": file}, {})


def test_a_replica_has_the_same_settings(tmp_path: Path) -> None:
    settings = Settings(
        model="demo", replicas=2, port=9000, max_num_seqs=7, api_key=("a", "b,c"), scheduling_policy="fair",
        tenant_weights={"a": 2.0}, results="postgresql://u:p@h/d", page=False,
    )  # fmt: skip
    of_replica = read(config_of(settings, tag="r1-", num_threads=3), tmp_path)
    assert (of_replica.max_num_seqs, of_replica.page, of_replica.results) == (7, False, "postgresql://u:p@h/d")
    assert of_replica.keys == ("a", "b,c")
    assert of_replica.tenant_weights == {"a": 2.0}
    assert (of_replica.id_tag, of_replica.num_threads) == ("r1-", 3)
    assert of_replica.replicas is None  # a replica has none of its own


def test_keys_of_a_file_need_no_file_where_the_replica_runs(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    text = config_of(Settings(api_key_file=str(keys), api_key=("other",)), tag="r0-", num_threads=None)
    assert yaml.safe_load(text)["api_key"] == ["other", "secret"]
    assert "api_key_file" not in text


def test_threads_that_were_asked_for_stay(tmp_path: Path) -> None:
    assert read(config_of(Settings(num_threads=5), tag="r0-", num_threads=1), tmp_path).num_threads == 5


@pytest.mark.parametrize(("host", "is_allowed"), [("llm.example.com", True), ("::1", False)])
def test_clients_may_call_it_by_the_name_of_all(tmp_path: Path, host: str, is_allowed: bool) -> None:
    of_replica = read(config_of(Settings(host=host), tag="r0-", num_threads=1), tmp_path)
    assert (host in of_replica.allowed_hosts) is is_allowed


def test_no_tag_begins_another() -> None:
    tags = list(tags_of(Settings(id_tag="eu-"), 12).values())
    assert tags[0] == "eu-r0-"
    assert not any(b.startswith(a) for a in tags for b in tags if a is not b)


def test_a_cluster_without_replicas_is_a_slip() -> None:
    with pytest.raises(ConfigError, match="--replicas N"):
        Settings(ray_address="auto")


@pytest.mark.parametrize(
    ("given", "named"),
    [({"results": "jobs.db"}, "postgresql://"), ({"record": "x"}, "--record"), ({"results_url": "u"}, "--results-url")],
)
def test_what_belongs_to_one_server_is_refused(given: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        check_replicas(Settings(replicas=2, **given))  # type: ignore[arg-type]
    check_replicas(Settings(replicas=2, results="postgresql://h/d"))
