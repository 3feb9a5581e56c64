"""Manifests, as kustomize builds them: Kubernetes' own schemas, the hardening of the pods, the existence of names."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from splitfuse.server.metrics import Metrics
from splitfuse.server.settings import Settings

from .dockerfile import ancestry, read_dockerfile

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker/kubernetes"
KUBECTL = shutil.which("kubectl")
COMPONENTS = sorted(path.name for path in (FOLDER / "components").iterdir())
STAGES = ancestry(read_dockerfile(ROOT / "Dockerfile"), "cpu")

pytestmark = pytest.mark.skipif(KUBECTL is None, reason="needs kubectl, which has kustomize")


class Built(NamedTuple):
    """Manifests of an overlay."""

    name: str
    manifests: list[dict[str, Any]]

    def one(self, kind: str) -> dict[str, Any]:
        (found,) = self.of(kind)
        return found

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [manifest for manifest in self.manifests if manifest["kind"] == kind]

    @property
    def pod(self) -> dict[str, Any]:
        template: dict[str, Any] = self.one("Deployment")["spec"]["template"]
        return template

    @property
    def container(self) -> dict[str, Any]:
        (container,) = self.pod["spec"]["containers"]
        return dict(container)


def build(folder: Path) -> Built:
    result = subprocess.run([str(KUBECTL), "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return Built(folder.name, list(yaml.safe_load_all(result.stdout)))


@pytest.fixture(scope="module", params=["single", "shared"])
def plain(request: pytest.FixtureRequest) -> Built:
    return build(FOLDER / request.param)


@pytest.fixture(scope="module", params=["single", "shared"])
def full(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build an overlay with every component."""
    overlay = tmp_path_factory.mktemp("overlay") / str(request.param)
    overlay.mkdir()
    relative = os.path.relpath(FOLDER, overlay.resolve())
    kustomization = {
        "resources": [f"{relative}/{request.param}"],
        "components": [f"{relative}/components/{name}" for name in COMPONENTS],
    }
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return build(overlay)


def test_each_kind_is_there(plain: Built, full: Built) -> None:
    common = ["Deployment", "NetworkPolicy", "Service", "ServiceAccount"]
    own = {"single": ["PersistentVolumeClaim"] * 2, "shared": ["HorizontalPodAutoscaler", "PodDisruptionBudget"]}
    assert sorted(manifest["kind"] for manifest in plain.manifests) == sorted(common + own[plain.name])
    more = ["Ingress", "NetworkPolicy", "NetworkPolicy", "ServiceMonitor"]
    assert sorted(manifest["kind"] for manifest in full.manifests) == sorted(common + own[full.name] + more)


def test_they_follow_the_schemas(full: Built) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs schemas: pip install kubernetes-validate")
    for manifest in full.manifests:
        if manifest["kind"] != "ServiceMonitor":  # a foreign kind
            validate.validate(manifest, "1.33", strict=True)


def test_selectors_find_the_pods(full: Built) -> None:
    labels = full.pod["metadata"]["labels"].items()
    selectors = [
        full.one("Deployment")["spec"]["selector"]["matchLabels"],
        full.one("Service")["spec"]["selector"],
        *(budget["spec"]["selector"]["matchLabels"] for budget in full.of("PodDisruptionBudget")),
        *(policy["spec"]["podSelector"]["matchLabels"] for policy in full.of("NetworkPolicy")),
        *(rule["labelSelector"]["matchLabels"] for rule in full.pod["spec"].get("topologySpreadConstraints", [])),
    ]
    assert len(selectors) == {"single": 5, "shared": 7}[full.name]
    for selector in selectors:
        assert selector
        assert selector.items() <= labels
    monitored = full.one("ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= full.one("Service")["metadata"]["labels"].items()
    for scaler in full.of("HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        assert (target["kind"], target["name"]) == ("Deployment", full.one("Deployment")["metadata"]["name"])


def test_the_pod_is_hardened_and_runs_as_the_images_user(full: Built) -> None:
    user = [found.text for stage in STAGES for found in stage.all("USER")][-1]
    spec, container = full.pod["spec"], full.container
    context = spec["securityContext"]
    assert user == f"{context['runAsUser']}:{context['runAsGroup']}"
    assert context["runAsNonRoot"] is True
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert spec["serviceAccountName"] == full.one("ServiceAccount")["metadata"]["name"]
    expected = {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert container["securityContext"] == expected
    assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
    assert container["resources"]["limits"].keys() == {"memory", "nvidia.com/gpu"}
    assert container["image"] == "splitfuse:cuda"


def test_what_is_written_lies_on_volumes(plain: Built) -> None:
    mounts = {mount["mountPath"]: mount["name"] for mount in plain.container["volumeMounts"]}
    results = {"single": {"/results"}, "shared": set()}[plain.name]  # shared ones are in the database
    assert set(mounts) == {"/cache", "/tmp"} | results
    volumes = {volume["name"]: volume for volume in plain.pod["spec"]["volumes"]}
    assert set(mounts.values()) == volumes.keys()
    claimed = [volume["persistentVolumeClaim"] for volume in volumes.values() if "persistentVolumeClaim" in volume]
    assert {claim["claimName"] for claim in claimed} == {
        claim["metadata"]["name"] for claim in plain.of("PersistentVolumeClaim")
    }
    if plain.name == "single":
        assert plain.one("Deployment")["spec"]["strategy"] == {"type": "Recreate"}
        path = next(entry["value"] for entry in plain.container["env"] if entry["name"] == "SPLITFUSE_RESULTS")
        assert path.startswith("/results/")


def test_probes_ask_what_the_server_answers(full: Built) -> None:
    container = full.container
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert paths == {"startup": "/ready", "readiness": "/ready", "liveness": "/health"}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {container[f"{name}Probe"]["httpGet"]["port"] for name in paths} == set(ports)
    (port,) = full.one("Service")["spec"]["ports"]
    assert port["targetPort"] in ports
    assert [endpoint["port"] for endpoint in full.one("ServiceMonitor")["spec"]["endpoints"]] == [port["name"]]
    (rule,) = full.one("Ingress")["spec"]["rules"]
    assert rule["http"]["paths"][0]["backend"]["service"] == {"name": "splitfuse", "port": {"name": port["name"]}}
    allowed = [port["port"] for policy in full.of("NetworkPolicy") for port in policy["spec"]["ingress"][0]["ports"]]
    assert allowed == ["http"] * 3
    exposed = [found.text for stage in STAGES for found in stage.all("EXPOSE")]
    assert exposed == [str(ports["http"])] == [full.pod["metadata"]["annotations"]["prometheus.io/port"]]


def test_a_drain_has_time(plain: Built) -> None:
    (_, seconds) = plain.container["lifecycle"]["preStop"]["exec"]["command"]
    assert plain.pod["spec"]["terminationGracePeriodSeconds"] > int(seconds) + Settings().drain_timeout + 5


def test_variables_are_settings_and_secrets_are_told_how_to_make(full: Built) -> None:
    environment = full.container["env"]
    variables = {variable["name"] for variable in environment if variable["name"].startswith("SPLITFUSE_")}
    assert variables <= {f"SPLITFUSE_{name}".upper() for name in Settings.__dataclass_fields__}
    assert {"SPLITFUSE_RESULTS", "SPLITFUSE_API_KEY"} <= variables
    assert ("SPLITFUSE_RESULTS_URL" in variables) == (full.name == "shared")
    told = set(re.findall(r"--from-literal=([a-z-]+)=", (FOLDER / full.name / "kustomization.yaml").read_text()))
    secrets = [entry["valueFrom"]["secretKeyRef"] for entry in environment if "secretKeyRef" in str(entry)]
    assert {secret["key"] for secret in secrets} == told
    assert full.one("ServiceMonitor")["spec"]["endpoints"][0]["authorization"]["credentials"]["key"] in told


def test_variables_that_others_name_come_before_them() -> None:
    names = [entry["name"] for entry in build(FOLDER / "shared").container["env"]]
    assert names.index("POD_IP") < names.index("SPLITFUSE_RESULTS_URL")


def test_it_scales_by_a_metric_that_is_exported() -> None:
    (metric,) = build(FOLDER / "shared").one("HorizontalPodAutoscaler")["spec"]["metrics"]
    text = (FOLDER / "shared/autoscaling.yaml").read_text()
    assert f"name: {{ as: {metric['pods']['metric']['name']} }}" in text
    exported = Metrics(prefix="splitfuse:", model_name="m", stats=dict).render().decode()
    named = set(re.findall(r"splitfuse:[a-z_]+", text))
    assert "splitfuse:num_requests_waiting" in named
    assert all(f"# TYPE {name} gauge" in exported for name in named)


def test_streams_have_time_at_the_ingress(full: Built) -> None:
    annotations = full.one("Ingress")["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert int(annotations["nginx.ingress.kubernetes.io/proxy-read-timeout"]) >= 3600
