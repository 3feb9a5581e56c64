"""Compose files: their form, the hardening of every service, the existence of mounted and named files."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from .dockerfile import read_dockerfile

FOLDER = Path(__file__).parents[2] / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("server", "server-gpu")
BALANCED: dict[str, Any] = yaml.safe_load((FOLDER / "compose.balanced.yaml").read_text())
# Services of both files, with the volumes that their file declares.
ALL = [(service, file["volumes"]) for file in (COMPOSE, BALANCED) for service in file["services"].values()]


def mounts(service: str) -> dict[str, str]:
    """Return the sources of a service's volumes by their paths in the container."""
    pairs = (volume.split(":")[:2] for volume in SERVICES[service].get("volumes", []))
    return {target: source for source, target in pairs}


def resolved(service: str, path: str) -> Path:
    """Return this project's file that is at `path` in the service's container."""
    for target, source in mounts(service).items():
        if source.startswith(".") and Path(path).is_relative_to(target):
            return FOLDER / source / Path(path).relative_to(target)
    raise AssertionError(f"{service} has nothing of ours at {path}")


@pytest.mark.parametrize("compose", [COMPOSE, BALANCED], ids=["one server", "balanced"])
def test_it_follows_the_compose_schema(compose: dict[str, Any]) -> None:
    schemas = pytest.importorskip("check_jsonschema.builtin_schemas", reason="pip install check-jsonschema")
    schema = json.loads((Path(schemas.__file__).parent / "vendor" / "compose-spec.json").read_text())
    jsonschema.validate(compose, schema)


def test_the_profiles_are_the_promised_ones() -> None:
    profiles = {name: service.get("profiles", []) for name, service in SERVICES.items()}
    assert profiles == {"server": [], "server-gpu": ["gpu"], "prometheus": ["monitoring"], "grafana": ["monitoring"]}


def test_every_service_is_hardened() -> None:
    for service, volumes in ALL:
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        # compose refuses to put configs and secrets into a container with a read-only root
        assert not {"cap_add", "privileged", "configs", "secrets"} & service.keys()
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert all(re.match(r"(127\.0\.0\.1|\$\{PUBLISH:-127\.0\.0\.1):", port) for port in service.get("ports", []))
        for source in (volume.split(":")[0] for volume in service.get("volumes", [])):
            assert (FOLDER / source).exists() if source.startswith(".") else source in volumes


def test_images_are_pinned() -> None:
    for name in set(SERVICES) - set(OURS):
        assert re.search(r":v?\d+\.\d+\.\d+$", SERVICES[name]["image"])


@pytest.mark.parametrize("name", OURS)
def test_our_services_build_a_stage_that_exists(name: str) -> None:
    service = SERVICES[name]
    context = (FOLDER / service["build"]["context"]).resolve()
    stages = read_dockerfile(context / "Dockerfile")
    assert service["build"]["target"] in {stage.name for stage in stages}
    volumes = [path for stage in stages for found in stage.all("VOLUME") for path in found.words]
    assert list(mounts(name)) == volumes


@pytest.mark.parametrize("name", OURS)
def test_the_key_comes_from_the_environment_and_the_drain_has_time(name: str) -> None:
    assert "SPLITFUSE_API_KEY" in SERVICES[name]["environment"]
    assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > 35


def test_the_variables_of_the_server_are_settings() -> None:
    settings = pytest.importorskip("splitfuse.server.settings")
    names = {f"SPLITFUSE_{name}".upper() for name in settings.Settings.__dataclass_fields__}
    environment = (variable.partition("=")[0] for variable in SERVICES["server"]["environment"])
    passed = {name for name in environment if name.startswith("SPLITFUSE_")}
    assert passed <= names
    stages = read_dockerfile(FOLDER.parent / "Dockerfile")
    words = [word for stage in stages for found in stage.all("ENV") for word in found.words]
    found = {word.partition("=")[0] for word in words if word.startswith("SPLITFUSE_")}
    assert found <= names | {"SPLITFUSE_NATIVE"}  # of the kernels, which know no settings


def test_prometheus_scrapes_the_server_with_the_key_that_compose_writes() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    host, _, port = job["static_configs"][0]["targets"][0].partition(":")
    assert host == "server"
    assert host in SERVICES["server-gpu"]["networks"]["default"]["aliases"]
    assert all(offer.endswith(f":{port}") for name in OURS for offer in SERVICES[name]["ports"])
    (command,) = SERVICES["prometheus"]["command"]
    assert f'"$$METRICS_KEY" > {job["authorization"]["credentials_file"]} && exec /bin/prometheus' in command
    assert any(path.startswith("/tmp:") for path in SERVICES["prometheus"]["tmpfs"])
    assert "METRICS_KEY" in SERVICES["prometheus"]["environment"]


def test_prometheus_finds_its_files() -> None:
    (command,) = SERVICES["prometheus"]["command"]
    flags = dict(word[2:].split("=", 1) for word in command.split() if word.startswith("--"))
    config_path = flags["config.file"]
    config = yaml.safe_load(resolved("prometheus", config_path).read_text())
    for rules in config["rule_files"]:
        assert resolved("prometheus", str(Path(config_path).parent / rules)).is_file()
    assert flags["storage.tsdb.path"] in mounts("prometheus")


def test_grafana_finds_its_dashboards_and_prometheus() -> None:
    provisioning = resolved("grafana", "/etc/grafana/provisioning")
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    host, _, port = source["url"].removeprefix("http://").partition(":")
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    assert any(offer.endswith(f":{port}") for offer in SERVICES[host]["ports"])
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "splitfuse.yaml").read_text())["providers"]
    assert list(resolved("grafana", provider["options"]["path"]).glob("*.json"))
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert resolved("grafana", home).is_file()
