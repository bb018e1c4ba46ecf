"""Imports run down only, and what must start fast loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "falcon", "celery")
TRACES = ("opentelemetry.sdk.trace", "opentelemetry.exporter", "google.protobuf")
"""What makes and sends them. (redis-py loads OpenTelemetry's metrics wherever it finds it.)"""


def test_import_contracts_hold() -> None:
    result = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout[-3000:]


def loaded(statement: str, names: tuple[str, ...]) -> set[str]:
    """Which of the packages a fresh interpreter has loaded after the statement."""
    program = f"{statement}\nimport sys\nprint(*(name for name in {names!r} if name in sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def common_modules() -> list[str]:
    files = sorted((ROOT / "common").rglob("*.py"))
    return [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files]


def test_common_loads_neither_torch_nor_falcon() -> None:
    statement = "\n".join(f"import {module}" for module in common_modules())
    assert not loaded(statement, ("torch", "transformers", "falcon"))


def test_the_web_side_loads_no_torch() -> None:
    assert not loaded("import web.app", ("torch", "transformers", *TRACES))


def test_workers_load_nothing_for_traces_by_themselves() -> None:
    assert not loaded("import workers.worker, workers.batch.runner", ("torch", *TRACES))


@pytest.mark.parametrize("module", ["ops.cli", "common.settings", "common.wire", "common.keys"])
def test_the_light_modules_stay_light(module: str) -> None:
    assert not loaded(f"import {module}", HEAVY)
