"""Libraries that the service was not made for are refused before anything starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.libraries import RELEASES, unfit_libraries

ROOT = Path(__file__).parents[2]


def test_what_is_installed_is_what_the_lock_file_says() -> None:
    assert unfit_libraries() is None
    wanted = {line.partition("#")[0].strip() for line in (ROOT / "requirements.in").read_text().splitlines()}
    assert {f"{name}=={release}.*" for name, release in RELEASES.items()} <= wanted


@pytest.mark.parametrize(("library", "version"), [("kombu", "5.6.2"), ("celery", "6.0.0"), ("redis", "80.1")])
def test_h30_another_version_is_refused_at_the_start(tmp_path: Path, library: str, version: str) -> None:
    """By its metadata: the first that is found on the path counts."""
    metadata = tmp_path / f"{library}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {library}\nVersion: {version}\n")
    started = subprocess.run(
        [sys.executable, "-m", "ops.cli", "worker"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (started.returncode, started.stdout) == (1, "")
    assert started.stderr.startswith(f"tgq: {library} {version} cannot be worked with: ")
    assert "kombu 5.7.*" in started.stderr
    assert len(started.stderr.splitlines()) == 1
