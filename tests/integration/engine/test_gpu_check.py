"""The GPU check's own code, over a tiny model on CPU."""

from __future__ import annotations

import os
from pathlib import Path

# Before the hub library is imported: everything here is local.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import msgspec
import pytest

from ops.bench import gpu_check
from ops.bench.gpu_check import Check, Report


def test_it_runs_to_its_end_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TGQ_ENGINE_THREADS", "1")
    assert gpu_check.main(["--device", "cpu", "--out", str(tmp_path / "report.json")]) == 0
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=Report)
    assert len(report.checks) == 4
    assert all(check.passed for check in report.checks)
    assert sorted(report.decode) == sorted(report.decode_plain) == [1, 4]
    assert list(report.prefill) == [128]
    assert not report.left_out
    assert msgspec.json.decode(capsys.readouterr().out.splitlines()[-1], type=Report) == report


def test_a_check_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failed:
        def __init__(self, device: str, folder: Path) -> None:
            pass

        def report(self) -> Report:
            return Report({}, [Check("one", True, 0.0, 0.0, 1.0), Check("two", False, float("nan"), 0.0, 1.0)])

    monkeypatch.setattr(gpu_check, "_Run", Failed)
    assert gpu_check.main(["--device", "cpu"]) == 1
