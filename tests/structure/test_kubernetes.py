"""The manifests: rendered by kubectl, held against Kubernetes' schemas and against what the service is."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from common.settings import Settings
from ops.cli import app
from ops.draining_worker import ENDING_SECONDS
from tests.promql import ROOT, RULES
from web.routes import ROUTES

FOLDER = ROOT / "ops/kubernetes"
OVERLAYS = ("base", "gpu", "from-zero")
COMMANDS = set(getattr(get_command(app), "commands", {}))

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl, which renders them, is not installed")


@functools.cache
def rendered(overlay: str) -> str:
    return subprocess.run(["kubectl", "kustomize", FOLDER / overlay], capture_output=True, text=True, check=True).stdout


def objects(overlay: str) -> dict[tuple[str, str], dict[str, Any]]:
    """By kind and name."""
    documents = yaml.safe_load_all(rendered(overlay))
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


def pod(overlay: str, name: str, kind: str = "Deployment") -> dict[str, Any]:
    spec: dict[str, Any] = objects(overlay)[kind, name]["spec"]["template"]["spec"]
    return spec


def container(overlay: str, name: str, kind: str = "Deployment") -> dict[str, Any]:
    (only,) = pod(overlay, name, kind)["containers"]
    return dict(only)


def workloads(overlay: str) -> list[tuple[str, str]]:
    return [key for key in objects(overlay) if key[0] in ("Deployment", "StatefulSet")]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_schemas_are_kept(overlay: str, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("kubernetes-validate")
    if not program.exists():
        pytest.skip("kubernetes-validate, which has Kubernetes' schemas, is not installed")
    (tmp_path / "manifests.yaml").write_text(rendered(overlay))
    checked = subprocess.run([program, "--strict", tmp_path / "manifests.yaml"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "passed for resource deployment/worker" in checked.stdout + checked.stderr


@pytest.mark.parametrize("name", ["web", "worker", "batch-worker"])
def test_commands_and_variables_exist(name: str) -> None:
    spec = container("gpu", name)
    assert spec["args"] == [name]
    assert name in COMMANDS
    for probe in ("startupProbe", "livenessProbe"):
        command = spec.get(probe, {}).get("exec", {}).get("command", [])
        assert not command or (command[0] == "tgq" and command[1] in COMMANDS)
    known = {Settings.variable(field).upper() for field in Settings.model_fields} | {"REDIS_PASSWORD", "HF_TOKEN"}
    assert {variable["name"] for variable in spec["env"]} <= known
    (settings,) = [found for (kind, name), found in objects("from-zero").items() if name.startswith("settings-")]
    assert set(settings["data"]) <= known


def test_probes_ask_for_routes_of_ports_that_are_served() -> None:
    spec = container("base", "web")
    probes = {name: spec[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert probes["livenessProbe"]["path"] == probes["startupProbe"]["path"] == "/health/live"
    assert probes["readinessProbe"]["path"] == "/health/ready"
    assert {probe["path"] for probe in probes.values()} <= set(ROUTES)
    assert {probe["port"] for probe in probes.values()} == {spec["ports"][0]["name"]}
    assert {"name": "PORT", "value": str(spec["ports"][0]["containerPort"])} in spec["env"]
    (service,) = objects("base")["Service", "web"]["spec"]["ports"]
    assert service["targetPort"] == spec["ports"][0]["name"]


@pytest.mark.parametrize("name", ["web", "worker"])
def test_pods_have_time_to_drain(name: str) -> None:
    (settings,) = [found["data"] for (kind, name), found in objects("base").items() if name.startswith("settings-")]
    needed = float(settings["GRACEFUL_TERMINATION_TIMEOUT"]) + ENDING_SECONDS
    hook = (
        container("base", name).get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
    )
    assert pod("base", name)["terminationGracePeriodSeconds"] >= needed + float(hook[1]) + 5


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_have_no_more_rights_than_they_need(overlay: str) -> None:
    for kind, name in workloads(overlay):
        spec, (only,) = pod(overlay, name, kind), pod(overlay, name, kind)["containers"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        # A Service named `web` would otherwise give every pod a WEB_PORT=tcp://...
        assert spec["enableServiceLinks"] is False
        assert only["securityContext"]["readOnlyRootFilesystem"] is True
        assert only["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert only["resources"]["limits"]["memory"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_is_referred_to_is_there(overlay: str) -> None:
    found = objects(overlay)
    for kind, name in workloads(overlay):
        labels = found[kind, name]["spec"]["template"]["metadata"]["labels"]
        assert labels.items() >= found[kind, name]["spec"]["selector"]["matchLabels"].items()
        for volume in pod(overlay, name, kind).get("volumes", []):
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in found
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in found
        mounts = {mount["name"] for mount in container(overlay, name, kind)["volumeMounts"]}
        claims = {claim["metadata"]["name"] for claim in found[kind, name]["spec"].get("volumeClaimTemplates", [])}
        assert mounts == {volume["name"] for volume in pod(overlay, name, kind).get("volumes", [])} | claims
    apps = {found[key]["spec"]["template"]["metadata"]["labels"]["app"] for key in workloads(overlay)}
    for (kind, _), document in found.items():
        if kind == "PodDisruptionBudget":
            assert document["spec"]["selector"]["matchLabels"]["app"] in apps
        if kind in ("HorizontalPodAutoscaler", "ScaledObject"):
            assert ("Deployment", document["spec"]["scaleTargetRef"]["name"]) in found


def test_one_number_has_one_owner() -> None:
    found = objects("gpu")
    assert "replicas" not in found["Deployment", "web"]["spec"]
    assert "replicas" not in found["Deployment", "worker"]["spec"]
    assert objects("base")["Deployment", "worker"]["spec"]["replicas"] == 1


def test_a_worker_has_one_gpu() -> None:
    assert container("gpu", "worker")["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "nvidia.com/gpu" not in container("base", "worker")["resources"]["limits"]


def test_from_zero_nothing_needs_a_worker() -> None:
    assert objects("from-zero")["ScaledObject", "worker"]["spec"]["minReplicaCount"] == 0
    assert container("from-zero", "web")["readinessProbe"]["httpGet"]["path"] == "/health/live"


def test_only_ours_reach_redis() -> None:
    (rule,) = objects("gpu")["NetworkPolicy", "to-redis"]["spec"]["ingress"]
    (expression,) = rule["from"][0]["podSelector"]["matchExpressions"]
    assert set(expression["values"]) == {"web", "worker", "batch-worker"}
    assert objects("gpu")["NetworkPolicy", "nothing-else"]["spec"]["podSelector"] == {}


def test_rules_and_dashboards_become_objects() -> None:
    script = subprocess.run(["sh", FOLDER / "monitoring.sh"], capture_output=True, text=True, check=True).stdout
    rules, dashboards = yaml.safe_load_all(script)
    groups = [group for file in RULES for group in yaml.safe_load(file.read_text())["groups"]]
    assert rules["kind"] == "PrometheusRule"
    assert rules["spec"]["groups"] == groups
    assert dashboards["data"] == {
        f"tgq-{file.name}": file.read_text() for file in sorted((ROOT / "ops/grafana/dashboards").glob("*.json"))
    }


def test_no_secret_is_written_down() -> None:
    text = "\n".join(map(rendered, OVERLAYS))
    assert not [key for overlay in OVERLAYS for key in objects(overlay) if key[0] == "Secret"]
    assert set(re.findall(r"secretKeyRef:\n\s+key: (\S+)\n\s+name: (\S+)", text)) == {
        ("redis-password", "tgq"),
        ("api-key", "tgq"),
        ("hf-token", "tgq"),
    }
