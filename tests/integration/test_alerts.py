"""Prometheus' own tool checks the configuration and the rules, and plays the alerts' tests."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.promql import ROOT

FOLDER = ROOT / "ops/prometheus"

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt install prometheus)"
)


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "config", "prometheus.yml"],
        ["check", "rules", "rules.yml", "alerts.yml"],
        ["test", "rules", "tests/alerts.yml"],
    ],
    ids=" ".join,
)
def test_promtool_is_content(arguments: list[str]) -> None:
    checked = subprocess.run(["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
