"""docker-compose.yml, the Dockerfile and what both name: commands, settings, ports, routes, time limits."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from common.settings import DEFAULT_MODEL, Settings
from ops.cli import app
from ops.draining_worker import ENDING_SECONDS
from tests.compose_file import OURS, ROOT, compose, seconds
from tests.images.dockerfile import read_dockerfile
from web.routes import DOCUMENTATION, ROUTES

DOCKERFILE = ROOT / "ops/docker/Dockerfile"
COMMANDS = set(getattr(get_command(app), "commands", {}))
OTHERS_VARIABLES = {"HF_HOME", "HF_TOKEN", "PATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}
"""Read by Python and by the hub's library."""

services: dict[str, Any] = compose()["services"]
stages = read_dockerfile(DOCKERFILE)


@pytest.mark.parametrize("file", ["docker-compose.yml", "ops/docker/gpu.yml"])
def test_the_compose_specification_is_kept(file: str) -> None:
    program = Path(sys.executable).with_name("check-jsonschema")
    if not program.exists():
        pytest.skip("check-jsonschema, which has the specification's schema, is not installed")
    checked = subprocess.run(
        [program, "--builtin-schema", "vendor.compose-spec", ROOT / file], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("name", OURS)
def test_commands_exist(name: str) -> None:
    service = services[name]
    stage = stages[service["build"]["target"]]
    assert stage.words("ENTRYPOINT") == ["tgq"]
    assert service["command"][0] in COMMANDS
    check = service["healthcheck"].get("test", [])
    if "tgq" in check:
        assert check[check.index("tgq") + 1] in COMMANDS


def test_default_commands_of_the_images_exist() -> None:
    assert {stages[name].words("CMD")[0] for name in ("web", "worker")} <= COMMANDS


@pytest.mark.parametrize("name", OURS)
def test_variables_are_settings(name: str) -> None:
    known = {Settings.variable(field).upper() for field in Settings.model_fields}
    assert set(services[name]["environment"]) <= known


@pytest.mark.parametrize("name", ["web", "worker"])
def test_variables_of_the_images_are_settings(name: str) -> None:
    known = {Settings.variable(field).upper() for field in Settings.model_fields} | OTHERS_VARIABLES
    assert {variable for variable in stages[name].environment if not variable.startswith("NVIDIA_")} <= known


def test_health_checks_ask_for_routes_that_exist() -> None:
    check = " ".join(services["web"]["healthcheck"]["test"])
    address, path = re.findall(r"http://127\.0\.0\.1:(\d+)(/[\w/]+)", check)[0]
    assert path in {**ROUTES, **DOCUMENTATION}
    assert address == services["web"]["environment"]["PORT"]
    assert services["web"]["ports"] == ["127.0.0.1:3000:3000"]


def test_containers_have_time_to_drain() -> None:
    settings = Settings.of()
    needed = settings.graceful_termination_timeout + ENDING_SECONDS + 5
    assert seconds(services["web"]["stop_grace_period"]) >= needed
    assert seconds(services["worker"]["stop_grace_period"]) >= needed


def test_nothing_to_edit_serves_the_default_model_on_the_cpu() -> None:
    assert Settings.of().model_id == DEFAULT_MODEL
    unasked = {name for name, service in services.items() if "profiles" not in service}
    assert unasked == {*OURS, "redis", "redis-access"}
    assert not any("deploy" in services[name] for name in unasked)
    assert "TORCH_INDEX=https://" in dict(stages["worker-packages"].steps)["ARG"]


def test_the_gpu_file_changes_the_worker_alone() -> None:
    gpu = compose("ops/docker/gpu.yml")["services"]
    assert set(gpu) == {"worker"}
    (device,) = gpu["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert ("count" in device) != ("device_ids" in device)
    assert gpu["worker"]["build"]["args"] == {"TORCH_INDEX": ""}


@pytest.mark.parametrize("name", OURS)
def test_containers_have_no_more_rights_than_they_need(name: str) -> None:
    service = services[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert stages[service["build"]["target"]].words("USER") == ["10001:10001"]


def test_only_this_machine_is_listened_to_unless_somebody_says_so() -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert len(published) >= 4
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert "ports" not in services["redis"]
    assert services["redis"]["networks"] == ["inside"]
    assert services["redis-access"]["network_mode"] == "none"
    assert compose()["networks"]["inside"] == {"internal": True}


def test_volumes_networks_and_dependencies_are_declared() -> None:
    document = compose()
    for service in services.values():
        named = {volume.partition(":")[0] for volume in service.get("volumes", [])}
        assert {volume for volume in named if "/" not in volume} <= set(document["volumes"])
        assert set(service.get("networks", [])) <= set(document["networks"])
        assert set(service.get("depends_on", [])) <= set(services)
        for path in (volume for volume in named if volume.startswith("./")):
            assert (ROOT / path).is_dir()


def test_the_web_image_has_neither_torch_nor_what_only_engines_use() -> None:
    patterns = (ROOT / "ops/docker/engine-packages.txt").read_text().split()
    lock = (ROOT / "requirements.lock").read_text().splitlines()
    left_out = {pattern: [line for line in lock if re.match(pattern, line, re.IGNORECASE)] for pattern in patterns}
    assert all(len(lines) == 1 for lines in left_out.values()), left_out
    assert {"^torch==", "^transformers=="} <= set(patterns)


def test_the_dockerfile_copies_what_exists_and_is_not_ignored() -> None:
    ignored = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text()
    kept = set(re.findall(r"^!(\S+)$", ignored, re.MULTILINE))
    copied = {
        word
        for stage in stages.values()
        for name, text in stage.steps
        if name == "COPY" and not text.startswith("--from")
        for word in text.split()[:-1]
    }
    assert copied
    assert not [path for path in copied if not (ROOT / path).exists()]
    assert not [path for path in copied if path not in kept and path.split("/")[0] not in kept]


def test_secrets_stay_out_of_images_and_history() -> None:
    assert ".env" in (ROOT / ".gitignore").read_text().split()
    assert (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().splitlines()[1] == "*"
    variables = {variable for stage in stages.values() for variable in stage.environment}
    assert not [variable for variable in variables if re.search("TOKEN|KEY|PASSWORD", variable)]
