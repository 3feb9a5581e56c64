"""Manifests: Kubernetes' own schemas, the hardening of the pods, the existence of named objects."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from splitfuse.server.metrics import Metrics
from splitfuse.server.settings import Settings

from .dockerfile import ancestry, read_dockerfile

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker/kubernetes"
MANIFESTS: list[dict[str, Any]] = [
    manifest for path in sorted(FOLDER.glob("*.yaml")) for manifest in yaml.safe_load_all(path.read_text())
]
KINDS = {manifest["kind"]: manifest for manifest in MANIFESTS}
POD: dict[str, Any] = KINDS["Deployment"]["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]
STAGES = ancestry(read_dockerfile(ROOT / "Dockerfile"), "cpu")


def test_each_kind_is_there_once():
    names = {"Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler", "ServiceMonitor"}
    assert sorted(manifest["kind"] for manifest in MANIFESTS) == sorted(names)
    assert {manifest["metadata"]["name"] for manifest in MANIFESTS} == {"splitfuse"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "ServiceMonitor"])  # a foreign kind
def test_it_follows_the_schema(kind):
    validate = pytest.importorskip("kubernetes_validate", reason="needs schemas: pip install kubernetes-validate")
    validate.validate(KINDS[kind], "1.33", strict=True)


def test_selectors_find_the_pods():
    labels = POD["metadata"]["labels"].items()
    for selector in (
        KINDS["Deployment"]["spec"]["selector"]["matchLabels"],
        KINDS["Service"]["spec"]["selector"],
        KINDS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        POD["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
    ):
        assert selector
        assert selector.items() <= labels
    monitored = KINDS["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= KINDS["Service"]["metadata"]["labels"].items()
    target = KINDS["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", KINDS["Deployment"]["metadata"]["name"])


def test_the_pod_is_hardened_and_runs_as_the_images_user():
    user = [found.text for stage in STAGES for found in stage.all("USER")][-1]
    context = POD["spec"]["securityContext"]
    assert user == f"{context['runAsUser']}:{context['runAsGroup']}"
    assert context["runAsNonRoot"] is True
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert POD["spec"]["automountServiceAccountToken"] is False
    expected = {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert CONTAINER["securityContext"] == expected
    assert {"cpu", "memory"} <= CONTAINER["resources"]["requests"].keys()
    assert "memory" in CONTAINER["resources"]["limits"]


def test_what_is_written_lies_on_volumes():
    mounts = {mount["mountPath"]: mount["name"] for mount in CONTAINER["volumeMounts"]}
    assert set(mounts) == {"/cache", "/tmp"}  # results are in the database
    assert set(mounts.values()) == {volume["name"] for volume in POD["spec"]["volumes"]}


def test_probes_ask_what_the_server_answers():
    paths = {name: CONTAINER[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert paths == {"startup": "/ready", "readiness": "/ready", "liveness": "/health"}
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert {CONTAINER[f"{name}Probe"]["httpGet"]["port"] for name in paths} == set(ports)
    (port,) = KINDS["Service"]["spec"]["ports"]
    assert port["targetPort"] in ports
    assert [endpoint["port"] for endpoint in KINDS["ServiceMonitor"]["spec"]["endpoints"]] == [port["name"]]
    exposed = [found.text for stage in STAGES for found in stage.all("EXPOSE")]
    assert exposed == [str(ports["http"])] == [POD["metadata"]["annotations"]["prometheus.io/port"]]


def test_a_drain_has_time():
    (_, seconds) = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert POD["spec"]["terminationGracePeriodSeconds"] > int(seconds) + Settings().drain_timeout + 5


def test_variables_are_settings_and_secrets_are_told_how_to_make():
    variables = {variable["name"] for variable in CONTAINER["env"] if variable["name"].startswith("SPLITFUSE_")}
    assert variables <= {f"SPLITFUSE_{name}".upper() for name in Settings.__dataclass_fields__}
    assert {"SPLITFUSE_RESULTS", "SPLITFUSE_RESULTS_URL", "SPLITFUSE_API_KEY"} <= variables
    told = set(re.findall(r"--from-literal=([a-z-]+)=", (FOLDER / "splitfuse.yaml").read_text()))
    secrets = [entry["valueFrom"]["secretKeyRef"] for entry in CONTAINER["env"] if "secretKeyRef" in str(entry)]
    assert {secret["key"] for secret in secrets} == told
    assert KINDS["ServiceMonitor"]["spec"]["endpoints"][0]["authorization"]["credentials"]["key"] in told


def test_it_scales_by_a_metric_that_is_exported():
    (metric,) = KINDS["HorizontalPodAutoscaler"]["spec"]["metrics"]
    text = (FOLDER / "autoscaling.yaml").read_text()
    assert f"name: {{ as: {metric['pods']['metric']['name']} }}" in text
    exported = Metrics(prefix="splitfuse:", model_name="m", stats=dict).render().decode()
    named = set(re.findall(r"splitfuse:[a-z_]+", text))
    assert "splitfuse:num_requests_waiting" in named
    assert all(f"# TYPE {name} gauge" in exported for name in named)
